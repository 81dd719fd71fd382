"""The gradient part of a checkpoint's record: rows of methods, each held against the baseline, from inner products."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tokencredit.lab.credit.paired import Paired, surviving_t
from tokencredit.lab.credit.quality import (
    Axes,
    Halves,
    Products,
    View,
    axes_of,
    difference,
    halves_without_entropy,
    rollouts_needed,
    view,
    without_entropy,
)

Found = Mapping[str, tuple[Sequence[Products], Products]]
"""Method -> products of each batch's gradient, and of their mean."""


def gradient_record(
    found: Found,
    halves: Halves,
    *,
    baseline: str,
    twins: Mapping[str, str | None],
    rollouts: int,
    shown: Sequence[str],
    limit: float | None = None,
) -> dict[str, Any]:
    """`rollouts` are those of one batch; only methods in `shown` get a row, the others are what rows are compared with.

    `limit` is the baseline's cosine with infinitely many rollouts where larger batches have told it better than these can.
    """
    plain, orthogonal = axes_of(halves), axes_of(halves_without_entropy(halves))
    whole = {name: view(batches, mean, plain) for name, (batches, mean) in found.items()}
    rest = {
        name: view([without_entropy(one, plain) for one in batches], without_entropy(mean, plain), orthogonal)
        for name, (batches, mean) in found.items()
    }
    # In this order an unknown limit stays unknown.
    limit = min(whole[baseline].mean_cosine_corrected if limit is None else limit, 1.0)
    compared = [name for name in shown if name != baseline]
    batches = len(whole[baseline].cosines)
    rows = []
    for name in shown:
        twin = twins.get(name)
        rows.append(
            {
                "method": name,
                **_seen(whole[name], whole[baseline], plain),
                "without_entropy": _seen(rest[name], rest[baseline], orthogonal),
                "leaning_on_sharpness": _sharpness(found[name][1], plain),
                "rollouts_grpo_would_need": _needed(whole[name], whole[baseline], plain, rollouts, limit),
                "versus_uniform_credit": None
                if twin is None
                else difference(whole[name].cosines, whole[twin].cosines)._asdict() | {"twin": twin},
            }
        )
    return {
        "batches": batches,
        "rollouts_per_batch": rollouts,
        "half_half_cosine": plain.agreement,
        "reference_reliability": plain.reliability,
        "baseline_limit": limit,
        "reference_toward_sharpness": plain.toward_sharpness,
        "compared": len(compared),
        "surviving_t": surviving_t(len(compared), batches - 1) if batches > 1 else math.nan,
        "rows": rows,
    }


def _seen(own: View, other: View, axes: Axes) -> dict[str, Any]:
    return {
        "cosine": math.fsum(own.cosines) / len(own.cosines),
        "versus_grpo": difference(own.cosines, other.cosines)._asdict(),
        "mean_cosine": own.mean_cosine,
        "mean_cosine_corrected": own.mean_cosine_corrected,
        "snr": own.snr,
        "cosines": own.cosines,
    }


def _sharpness(mean: Products, axes: Axes) -> float:
    """cos(mean gradient, -grad H)"""
    size = mean.square * axes.entropy
    return -mean.lean / math.sqrt(size) if size > 0 else 0.0


def _needed(own: View, base: View, axes: Axes, rollouts: int, limit: float) -> dict[str, float]:
    """All cosines without what the noise of g* takes away, so that they belong to the same limit."""
    baseline = math.fsum(base.cosines) / len(base.cosines) / axes.reliability
    apart: Paired = difference(own.cosines, base.cosines)
    at = {"value": apart.mean, "low": apart.low, "high": apart.high}
    return {name: rollouts_needed(baseline + gap / axes.reliability, baseline, limit, rollouts) for name, gap in at.items()}

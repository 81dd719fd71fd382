"""Compares every method's first-step gradient, on small batches and on the groups with known A*, with the reference gradient g*."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.errors import ConfigError
from tokencredit.lab.credit.batch import Facts, Reference, ReferenceSum, SampledBatch, alike, draw_batch, gradients_of, stretched, together
from tokencredit.lab.credit.measure import Clock, Measured, Notify, Subject, with_uniform_twins
from tokencredit.lab.credit.quality import (
    Axes,
    Halves,
    Paired,
    Products,
    View,
    axes_of,
    difference,
    halves_without_entropy,
    rollouts_needed,
    surviving_t,
    view,
    without_entropy,
)
from tokencredit.lab.credit.recipes import BASELINE, ORACLE, CreditAssigner, CreditOrder, Field, LeftOut
from tokencredit.rollout.generate import ROWS_AT_ONCE
from tokencredit.seeds import derive_seed

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
    """The gradient part of a checkpoint's record. `rollouts`: of one batch; only methods in `shown` get a row.

    `limit` is the baseline's cosine with infinitely many rollouts if larger batches estimate it better than these.
    """
    plain, orthogonal = axes_of(halves), axes_of(halves_without_entropy(halves))
    whole = {name: view(batches, mean, plain) for name, (batches, mean) in found.items()}
    rest = {
        name: view([without_entropy(one, plain) for one in batches], without_entropy(mean, plain), orthogonal)
        for name, (batches, mean) in found.items()
    }
    # In this order a NaN limit stays NaN.
    limit = min(whole[baseline].mean_cosine_corrected if limit is None else limit, 1.0)
    compared = [name for name in shown if name != baseline]
    batches = len(whole[baseline].cosines)
    rows = []
    for name in shown:
        twin = twins.get(name)
        rows.append(
            {
                "method": name,
                **_view_row(whole[name], whole[baseline], plain),
                "without_entropy": _view_row(rest[name], rest[baseline], orthogonal),
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


def _view_row(own: View, other: View, axes: Axes) -> dict[str, Any]:
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
    """Rollouts the baseline needs, from cosines corrected for the noise of g*, so that they share one limit."""
    baseline = math.fsum(base.cosines) / len(base.cosines) / axes.reliability
    apart: Paired = difference(own.cosines, base.cosines)
    at = {"value": apart.mean, "low": apart.low, "high": apart.high}
    return {name: rollouts_needed(baseline + gap / axes.reliability, baseline, limit, rollouts) for name, gap in at.items()}


Ascents = Mapping[str, Float[Tensor, "seq tok"]]


class _Batch(NamedTuple):
    batch: SampledBatch
    ascents: Ascents


def draw_reference(subject: Subject, order: CreditOrder, notify: Notify) -> tuple[Reference, Facts]:
    policy, task, config = subject
    size = config.sampling.group_size
    wanted = order.reference // size
    # An even number of equal batches, so that both halves weigh the same.
    lots = max(2, -(-wanted // max(1, ROWS_AT_ONCE // size)))
    lots += lots % 2
    total, facts = ReferenceSum(policy, config), Facts()
    for number in range(lots):
        notify("reference gradient", number, lots)
        batch = draw_batch(policy, task, config, prompts=max(1, wanted // lots), purpose="reference", number=number)
        total.add(batch)
        facts = facts.with_batch(batch)
    return total.finish(), facts


def halves_of(reference: Reference) -> Halves:
    (a, b), h = reference.halves, reference.entropy
    return Halves(*(float(one.double() @ two.double()) for one, two in ((a, a), (b, b), (a, b), (a, h), (b, h), (h, h))))


def products_of(gradient: Tensor, reference: Tensor, entropy: Tensor) -> Products:
    own = gradient.double()
    return Products(float(own @ reference.double()), float(own @ own), float(own @ entropy.double()))


class _Collected:
    """Inner products of every batch's gradients, and their sums for the means."""

    def __init__(self, reference: Reference) -> None:
        self.axes = reference.gradient, reference.entropy
        self.products: dict[str, list[Products]] = {}
        self.sums: dict[str, Tensor] = {}

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            self.products.setdefault(name, []).append(products_of(gradient, *self.axes))
            self.sums[name] = self.sums[name] + gradient if name in self.sums else gradient.clone()

    def finish(self, leader: Mapping[str, str]) -> dict[str, tuple[Sequence[Products], Products]]:
        count = len(next(iter(self.products.values())))
        means = {name: products_of(total / count, *self.axes) for name, total in self.sums.items()}
        return {name: (self.products[first], means[first]) for name, first in leader.items()}


def compare(subject: Subject, order: CreditOrder, field: Field, measured: Measured, notify: Notify, clock: Clock) -> dict[str, Any]:
    reference, facts = draw_reference(subject, order, notify)
    clock.lap("reference")
    halves = halves_of(reference)
    if not halves.aa > 0 or not halves.bb > 0:
        raise ConfigError(
            "no group of the reference rollouts has scores that differ, so there is no gradient; choose another task or model"
        )
    twin_of = {one.name: one.twin for one in field.methods}
    entropy_agreement = torch.nn.functional.cosine_similarity(*reference.entropy_halves, dim=0)
    record: dict[str, Any] = {"policy": facts.to_json(), "entropy_half_half_cosine": float(entropy_agreement)}
    too_expensive = _too_expensive(measured, order, len(measured.batch.score))
    batches = list(_batches(subject, order, field, [*measured.assigned], {one.recipe for one in too_expensive}, notify))
    clock.lap("batches")
    found, leader = _over_batches(subject, batches, reference, notify)
    rollouts = order.batch_prompts * subject.config.sampling.group_size
    shown = [one.name for one in field.methods if one.name in found]
    own_twins = {name: twin if twin in found else None for name, twin in twin_of.items()}
    record["batches"] = gradient_record(found, halves, baseline=BASELINE, twins=own_twins, rollouts=rollouts, shown=shown)
    _mark_same_directions(record["batches"], leader)
    clock.lap("batch gradients")
    left_out = too_expensive
    if with_gradient := _groups_with_gradient(measured):
        found, leader = _over_groups(subject, measured, with_gradient, reference, notify)
        shown = [one.name for one in field.methods if one.name in found] + [ORACLE]
        own_twins = {name: twin if twin in found else None for name, twin in twin_of.items()}
        size, limit = subject.config.sampling.group_size, record["batches"]["baseline_limit"]
        record["groups"] = gradient_record(found, halves, baseline=BASELINE, twins=own_twins, rollouts=size, shown=shown, limit=limit)
        _mark_same_directions(record["groups"], leader)
    else:
        record["groups"] = None
        left_out = [*too_expensive, LeftOut(ORACLE, "groups", "no group of the truth batch has scores that differ; give more --prompts")]
    clock.lap("group gradients")
    return record | {"left_out": left_out}


def _mark_same_directions(record: dict[str, Any], leader: Mapping[str, str]) -> None:
    shown = {row["method"] for row in record["rows"]}
    for row in record["rows"]:
        same = next((name for name in leader if name in shown and leader[name] == leader[row["method"]]), row["method"])
        row["same_direction_as"] = None if same == row["method"] else same
    record["different_directions"] = sum(row["same_direction_as"] is None for row in record["rows"])


def _too_expensive(measured: Measured, order: CreditOrder, rollouts: int) -> list[LeftOut]:
    return [
        LeftOut(
            name,
            "batches",
            f"took {one.sampled / rollouts:.1f} extra rollouts per rollout, more than --extra {order.extra:g}; only compared on groups",
        )
        for name, one in measured.assigned.items()
        if one.sampled > order.extra * rollouts
    ]


def _batches(
    subject: Subject, order: CreditOrder, field: Field, known: Sequence[str], too_expensive: set[str], notify: Notify
) -> Iterator[_Batch]:
    policy, task, config = subject
    methods = [one for one in with_uniform_twins(field.methods) if one.name in known and one.name not in too_expensive]
    for number in range(order.batches):
        notify("batches", number, order.batches)
        batch = draw_batch(policy, task, config, prompts=order.batch_prompts, purpose="batch", number=number, keep_hidden=True)
        assign = CreditAssigner(policy, task, batch, config, seed=derive_seed(config.seed, "batch-credit", number))
        given = {one.name: assign(one) for one in methods}
        ascents = {name: found.ascent for name, found in given.items() if not isinstance(found, str)}
        # Free the hidden states: only the credit needed them.
        yield _Batch(batch._replace(evidence=batch.evidence._replace(hidden=None, features=None)), ascents)


def _over_batches(
    subject: Subject, batches: Sequence[_Batch], reference: Reference, notify: Notify
) -> tuple[dict[str, tuple[Sequence[Products], Products]], dict[str, str]]:
    """One backward pass for each different direction of a batch."""
    names = [name for name in batches[0].ascents if all(name in one.ascents for one in batches)]
    same = [alike({name: one.ascents[name] for name in names}) for one in batches]
    sizes = [{name: float(one.ascents[name].double().norm()) for name in names} for one in batches]
    leader = together(same, sizes)
    collected = _Collected(reference)
    for number, (one, own) in enumerate(zip(batches, same, strict=True)):
        notify("gradients", number, len(batches))
        different = dict.fromkeys(own[name] for name in leader.values())
        found = gradients_of(subject.policy, one.batch.rollouts, {name: one.ascents[name] for name in different}, subject.config)
        collected.add(
            {name: stretched(found[own[name]], one.ascents[name], one.ascents[own[name]]) for name in dict.fromkeys(leader.values())}
        )
    return collected.finish(leader), leader


def _groups_with_gradient(measured: Measured) -> list[int]:
    """Groups in which the baseline has a gradient; in the others there is nothing to compare with."""
    group, ascent = measured.batch.rollouts.group, measured.assigned[BASELINE].ascent
    return [one for one in group.unique().tolist() if bool((ascent[group == one] != 0).any())]


def _over_groups(
    subject: Subject, measured: Measured, with_gradient: Sequence[int], reference: Reference, notify: Notify
) -> tuple[dict[str, tuple[Sequence[Products], Products]], dict[str, str]]:
    """Of the truth batch, one group at a time."""
    rollouts = measured.batch.rollouts
    truth = measured.truth.advantage.nan_to_num(0.0).to(measured.batch.evidence.logp) * rollouts.loss_mask
    ascents = {name: one.ascent for name, one in measured.assigned.items()} | {ORACLE: truth}
    leader = alike(ascents)
    different = {name: ascents[name] for name in dict.fromkeys(leader.values())}
    collected = _Collected(reference)
    for number, group in enumerate(with_gradient):
        notify("groups", number, len(with_gradient))
        rows = (rollouts.group == group).nonzero()[:, 0]
        own = {name: ascent[rows] for name, ascent in different.items()}
        same = alike(own)
        found = gradients_of(
            subject.policy, rollouts.select(rows), {name: own[name] for name in dict.fromkeys(same.values())}, subject.config
        )
        collected.add({name: stretched(found[same[name]], own[name], own[same[name]]) for name in different})
    return collected.finish(leader), leader

"""Accuracy of first-order predictions of an update: predicted against measured change of every token's log-prob."""

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.diagnose.common import (
    DEAD_BAND,
    class_parts,
    confidence_parts,
    correlation,
    count,
    evidence,
    mean_where,
    number,
    on_cpu,
    percent,
)
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding, TableRow

TRUST_TOKENS, TRUST_SLOPE, TRUST_ERROR = 0.95, 1.25, 0.25
"""Thresholds for reading single tokens: least correlation, factor of the slope around 1, largest median error. Ours."""
TRUST_AVERAGES, AVERAGES_SLOPE = 0.8, 2.0
"""The same thresholds for classes and averages."""
JUDGED_TOKENS = 20
"""A smaller class is not reported as badly predicted."""

HORIZONS = {"first": "the first optimizer step", "step": "the whole training step"}


def effect(
    table: TokenTable,
    *,
    predicted_first: Float[Tensor, " tok"] | None,
    change_first: Float[Tensor, " tok"] | None,
    predicted_step: Float[Tensor, " tok"] | None,
    change_step: Float[Tensor, " tok"],
    raw: Float[Tensor, " tok"] | None = None,
    method: str,
) -> Finding:
    """Agreement of predicted p and measured m changes of log-prob; `method` names how p was computed, `raw` is D+ + D-.

        correlation (Pearson);  slope = sum m p / sum p^2, of m on p through the origin
        sign = share with sign p = sign m where |m| > DEAD_BAND;  error = median |m - p| / median |m|

    Tokens where either is NaN are left out. NaN where nothing varies, nothing moved, or nothing was given.
    """
    table = on_cpu(table)
    given = {"first": (predicted_first, change_first), "step": (predicted_step, change_step)}
    pairs = {
        horizon: (evidence(table, f"predicted_{horizon}", predicted), evidence(table, f"change_{horizon}", change))
        for horizon, (predicted, change) in given.items()
        if predicted is not None and change is not None
    }
    numbers: dict[str, float] = {}
    for horizon, (predicted, measured) in pairs.items():
        numbers |= {f"{horizon}/{name}": float(value) for name, value in _agreement(predicted, measured).items()}
    if raw is not None:
        agreement = _agreement(evidence(table, "raw", raw), evidence(table, "change_step", change_step))
        numbers["raw/correlation"] = agreement["correlation"]
    by_class = _by_part(pairs, "token_class", class_parts(table))
    sentences = [_sentence(horizon, numbers) + _badly_predicted(horizon, by_class) for horizon in HORIZONS]
    if raw is not None:
        sentences.append(
            f"Correlation of the raw gradient's effect with the measured change of the whole step: {number(numbers['raw/correlation'])}."
        )
    return Finding(
        name="effect",
        note=f"Predicted by {method}. " + " ".join(sentences),
        numbers=numbers,
        tables={
            "by_confidence": _by_part(pairs, "confidence", confidence_parts(table)),
            "by_class": by_class,
        },
    )


def _agreement(predicted: Tensor, measured: Tensor) -> dict[str, float | int]:
    known = ~(predicted.isnan() | measured.isnan())
    predicted, measured = predicted[known], measured[known]
    return {
        "tokens": int(known.sum()),
        "correlation": correlation(predicted, measured),
        "slope": _ratio(measured @ predicted, predicted @ predicted),
        "sign": mean_where(predicted.sign() == measured.sign(), measured.abs() > DEAD_BAND),
        "error": _ratio(_median((measured - predicted).abs()), _median(measured.abs())),
    }


def _median(value: Tensor) -> Tensor:
    """Median; the mean of the two middle values for an even number, 0 for none."""
    return value.quantile(0.5) if len(value) else torch.zeros((), dtype=value.dtype)


def _ratio(above: Tensor, below: Tensor) -> float:
    return float(above / below) if float(below) > 0 else float("nan")


def _by_part(pairs: dict[str, tuple[Tensor, Tensor]], label: str, parts: dict[str, Tensor]) -> tuple[TableRow, ...]:
    rows = (
        {"horizon": horizon, label: name, **_agreement(predicted[part], measured[part])}
        for horizon, (predicted, measured) in pairs.items()
        for name, part in parts.items()
    )
    return tuple(row for row in rows if row["tokens"])


def _sentence(horizon: str, numbers: dict[str, float]) -> str:
    words = HORIZONS[horizon]
    if f"{horizon}/tokens" not in numbers:
        return f"For {words} there is no prediction to judge."
    found, tokens = numbers[f"{horizon}/correlation"], count(int(numbers[f"{horizon}/tokens"]), "token")
    if found != found:
        return f"For {words} the reliability of predictions is unknown (from {tokens})."
    steep = numbers[f"{horizon}/slope"]
    if found >= TRUST_TOKENS and 1 / TRUST_SLOPE <= steep <= TRUST_SLOPE and numbers[f"{horizon}/error"] <= TRUST_ERROR:
        advice = "predictions may be read token by token"
    elif found >= TRUST_AVERAGES and 1 / AVERAGES_SLOPE <= steep <= AVERAGES_SLOPE:
        advice = "read classes and averages, not single tokens"
    else:
        advice = "do not trust predictions"
    signs = numbers[f"{horizon}/sign"]
    agree = (
        "no token moved enough to judge its sign" if signs != signs else f"{percent(signs)} of signs agree where |change| > {DEAD_BAND:g}"
    )
    errors = number(numbers[f"{horizon}/error"])
    return f"For {words} the correlation is {found:.3f} over {tokens}, slope {number(steep)}, median error {errors}, {agree}: {advice}."


def _badly_predicted(horizon: str, by_class: tuple[TableRow, ...]) -> str:
    """Badly predicted classes, which the overall agreement may hide."""
    bad = [
        f"{row['token_class']} ({row['correlation']:.2f})"
        for row in by_class
        if row["horizon"] == horizon and int(row["tokens"] or 0) >= JUDGED_TOKENS and float(row["correlation"] or 0) < TRUST_AVERAGES
    ]
    return f" Not so for class {', '.join(bad)}." if bad else ""

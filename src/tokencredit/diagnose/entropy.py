"""Entropy before and after the update by token class, its trend over training, and an early warning of entropy collapse.

That intra-group learning may drive entropy to 0 is published (arXiv 2604.13088 v1); the floor, the window and the horizon are ours.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.diagnose.common import class_parts, evidence, mean_where, number
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding

Status = Literal["ok", "warning", "collapsed", "unknown"]
STATUS_LEVEL: dict[Status, float] = {"unknown": math.nan, "ok": 0.0, "warning": 1.0, "collapsed": 2.0}


TREND_POINTS = 5
"""Training steps that a trend needs; ours."""


class EntropyTrend(NamedTuple):
    status: Status
    """`unknown` if the history is too short for a trend."""
    current: float
    floor: float
    slope: float
    """Nats per training step; NaN for fewer than two steps."""
    steps_to_floor: float
    """Steps until the line reaches the floor, from the last step; NaN if the line does not fall."""


def entropy_trend(history: Sequence[tuple[int, float]], *, floor_share: float = 0.25, horizon: int = 20, window: int = 10) -> EntropyTrend:
    """Least-squares line through the last `window` points of (training step, mean entropy), and the step at which it reaches the floor.

    The floor is `floor_share` of the first mean. Collapsed: the last mean is under it. Warning: the line is there within
    `horizon` steps. Steps whose mean is NaN are left out.
    """
    known = [(step, value) for step, value in history if not math.isnan(value)]
    if not known:
        return EntropyTrend("unknown", math.nan, math.nan, math.nan, math.nan)
    floor, current = floor_share * known[0][1], known[-1][1]
    step, value = torch.tensor(known[-window:], dtype=torch.float64).unbind(-1)
    away = step - step.mean()
    spread = float(away.square().sum())
    slope = float((away * (value - value.mean())).sum()) / spread if spread > 0 else math.nan
    line_now = float(value.mean()) + slope * float(away[-1])
    steps_to_floor = max((line_now - floor) / -slope, 0.0) if slope < 0 else math.nan
    trusted = len(known) >= TREND_POINTS
    status = "collapsed" if current < floor else "warning" if trusted and steps_to_floor <= horizon else "ok" if trusted else "unknown"
    return EntropyTrend(status, current, floor, slope, steps_to_floor)


def entropy(
    table: TokenTable,
    entropy_after: Float[Tensor, " tok"] | None,
    history: Sequence[tuple[int, float]],
    *,
    floor_share: float = 0.25,
    horizon: int = 20,
    window: int = 10,
) -> Finding:
    """Mean entropy before and after the update over the observed tokens, and the trend of the run.

    Tokens whose entropy afterwards is NaN are left out; without `entropy_after` all tokens count and what follows is unknown.
    """
    trend = entropy_trend(history, floor_share=floor_share, horizon=horizon, window=window)
    before = table.entropy.double()
    after = torch.full_like(before, math.nan) if entropy_after is None else evidence(table, "entropy_after", entropy_after)
    known = torch.ones_like(before, dtype=torch.bool) if entropy_after is None else ~after.isnan()
    overall = _change(before, after, known)
    numbers = {
        **overall,
        "current": trend.current,
        "floor": trend.floor,
        "slope": trend.slope,
        "steps_to_floor": trend.steps_to_floor,
        "level": STATUS_LEVEL[trend.status],
        "tokens": float(known.sum()),
    }
    by_class = tuple(
        {"token_class": name, "tokens": int((here & known).sum()), **_change(before, after, here & known)}
        for name, here in class_parts(table).items()
    )
    note = " ".join([_words_of_change(overall), _words_of_trend(trend, floor_share, horizon)])
    return Finding(name="entropy", note=note, numbers=numbers, tables={"by_class": by_class, "trend": (trend._asdict(),)})


def _change(before: Tensor, after: Tensor, chosen: Bool[Tensor, " tok"]) -> dict[str, float]:
    return {
        "before": mean_where(before, chosen),
        "after": mean_where(after, chosen),
        "change": mean_where(after - before, chosen),
    }


def _words_of_change(overall: dict[str, float]) -> str:
    if math.isnan(overall["after"]):
        return (
            f"Mean entropy of the looked-at tokens was {number(overall['before'])} nats before the update; after it, it was not measured."
        )
    return (
        f"The update changed the mean entropy of the observed tokens from {number(overall['before'])} to {number(overall['after'])} nats."
    )


def _words_of_trend(trend: EntropyTrend, floor_share: float, horizon: int) -> str:
    if trend.status == "unknown":
        return f"Fewer than {TREND_POINTS} training steps are known, so the trend is unknown."
    floor = f"the floor of {number(trend.floor)} nats ({floor_share:g} of the first step's; the threshold is ours)"
    if trend.status == "collapsed":
        return f"Collapsed: the run's entropy, {number(trend.current)}, is under {floor}."
    if math.isnan(trend.steps_to_floor):
        return f"The run's entropy, {number(trend.current)}, is not falling; it lies above {floor}."
    line = f"at {number(trend.slope)} nats per step it reaches {floor} in {number(trend.steps_to_floor)} training steps"
    forecast = f"the run's entropy is {number(trend.current)}; {line}"
    return f"Warning: {forecast}." if trend.status == "warning" else f"No warning: {forecast}, more than {horizon}."

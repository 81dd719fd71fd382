"""What a learning curve says: points (rollouts used, held-out accuracy), the first at 0 rollouts. Straight lines between points.

When a recipe reaches the accuracy that the reference ends with.

By mean curves: a single run that ends on a plateau reaches another's last accuracy or does not by the luck of one evaluation.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokencredit.lab.compare.statistics import DRAWS, Bounds, Intervals, Numbers, between, freedom_of, resamples, student

Curve = Sequence[tuple[float, float]]


def accuracy_at(curve: Curve, rollouts: float) -> float:
    """On the line between the two evaluations around it."""
    if not curve[0][0] <= rollouts <= curve[-1][0]:
        raise ValueError(f"rollouts is {rollouts}, but the curve goes from {curve[0][0]} to {curve[-1][0]}")
    for (left, low), (right, high) in pairwise(curve):
        if rollouts <= right:
            return low + (high - low) * (rollouts - left) / (right - left) if right > left else high
    return curve[-1][1]


def area(curve: Curve, horizon: float) -> float:
    """Mean accuracy over the first `horizon` rollouts: the area under the curve, divided by its width."""
    if horizon <= 0:
        raise ValueError(f"horizon is {horizon}; it must be above 0")
    kept = [point for point in curve if point[0] < horizon]
    kept.append((horizon, accuracy_at(curve, horizon)))
    return sum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(kept)) / horizon


def rollouts_to(curve: Curve, level: float) -> float | None:
    """Where the curve first reaches `level`; 0 if the base is there already, None if no evaluation is."""
    reached = next((place for place, (_, accuracy) in enumerate(curve) if accuracy >= level), None)
    if reached is None or reached == 0:
        return None if reached is None else float(curve[0][0])
    (left, low), (right, high) = curve[reached - 1], curve[reached]
    return left + (right - left) * (level - low) / (high - low)


def common_horizon(curves: Sequence[Curve]) -> float:
    """The rollouts that every curve covers: a recipe that samples more per step is not given credit for the surplus."""
    return min(curve[-1][0] for curve in curves)


def on_grid(curves: Sequence[Curve], *, places: int = 41) -> tuple[list[float], list[list[float]]]:
    """Evenly spaced rollouts up to the common horizon, and each curve's accuracy there."""
    horizon = common_horizon(curves)
    grid = [horizon * place / (places - 1) for place in range(places)]
    return grid, [[accuracy_at(curve, rollouts) for rollouts in grid] for curve in curves]


MOST_PLACES = 200


class Reached(NamedTuple):
    low: float
    """Log ratio of rollouts, averaged over bases: at least."""
    high: float
    intervals: Intervals
    never: int
    """Bases on which the recipe's mean curve does not get there; then there is no upper end."""


def reaching(ours: Sequence[Sequence[Curve]], theirs: Sequence[Sequence[Curve]], *, over_all: bool, draws: int = DRAWS) -> Reached | None:
    """Rollouts to the reference's last accuracy over those it took itself, or with `over_all` over all that it used.

    One entry per base, runs in the order of seeds; seeds are resampled, both runs of a seed together. None where a base has that accuracy
    before any training: then there is nothing to reach.
    """
    once = [np.ones((1, len(own))) for own in ours]
    sizes = tuple(len(own) for own in ours)
    drawn = resamples(sizes, draws)
    low, high = _log_ratios(ours, theirs, once, over_all=over_all)
    if not ours or not np.isfinite(low[0]):
        return None
    lows, highs = _log_ratios(ours, theirs, drawn, over_all=over_all)
    never = sum(
        bool(np.isinf(_log_ratios([one], [other], [count], over_all=over_all)[1][0]))
        for one, other, count in zip(ours, theirs, once, strict=True)
    )
    freedom, (least, most) = freedom_of(sizes), (float(low[0]), float(high[0]))
    errors = Bounds(*(_error(one, sizes) for one in (lows, highs)))
    intervals = Intervals(between(lows, highs, sizes), student(Bounds(least, most), errors, freedom), freedom)
    return Reached(least, most, intervals, never)


def _error(drawn: Numbers, sizes: Sequence[int]) -> float:
    """Standard error by resamples, made larger by what they miss. Of a plain mean over seeds it is the one that a t test takes."""
    if not freedom_of(sizes) or not np.isfinite(drawn).all():
        return math.inf
    return float(drawn.std()) * math.sqrt(sum(sizes) / freedom_of(sizes))


def _log_ratios(
    ours: Sequence[Sequence[Curve]], theirs: Sequence[Sequence[Curve]], counts: Sequence[Numbers], *, over_all: bool
) -> tuple[Numbers, Numbers]:
    """At least and at most, for each resample."""
    lows, highs = [], []
    for own, other, count in zip(ours, theirs, counts, strict=True):
        (our_grid, our_means), (grid, means) = _mean_curves(own, count), _mean_curves(other, count)
        level = means[:, -1]
        taken = np.full(len(count), grid[-1]) if over_all else _first(grid, means, level)
        reached = _first(our_grid, our_means, level)
        with np.errstate(divide="ignore", invalid="ignore"):
            highs.append(np.log(reached / taken))
            lows.append(np.log(np.minimum(reached, our_grid[-1]) / taken))
    return np.mean(lows, axis=0), np.mean(highs, axis=0)


def _mean_curves(curves: Sequence[Curve], counts: Numbers) -> tuple[Numbers, Numbers]:
    """Rollouts, and the mean accuracy there of every resample."""
    horizon = common_horizon(curves)
    places = sorted({float(rollouts) for curve in curves for rollouts, _ in curve if rollouts <= horizon})
    if len(places) > MOST_PLACES:
        places = np.linspace(0, horizon, MOST_PLACES).tolist()
    table = np.array([[accuracy_at(curve, rollouts) for rollouts in places] for curve in curves])
    return np.array(places), counts @ table / counts.sum(1, keepdims=True)


def _first(grid: Numbers, means: Numbers, level: Numbers) -> Numbers:
    """Where each curve first reaches its level, on the line between two places; infinity where it does not."""
    # A mean is rounded in another order than the level it is compared with.
    above = means >= level[:, None] - 1e-12
    right = above.argmax(1)
    left, rows = np.maximum(right - 1, 0), np.arange(len(means))
    low, high = means[rows, left], means[rows, right]
    rise = np.where(high > low, high - low, 1.0)
    share = np.clip((level - low) / rise, 0.0, 1.0)
    found = np.where(right == 0, grid[0], grid[left] + (grid[right] - grid[left]) * share)
    return np.where(above.any(1), found, np.inf)

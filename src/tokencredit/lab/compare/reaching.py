"""When a recipe reaches the accuracy that the reference ends with.

By mean curves: a single run that ends on a plateau reaches another's last accuracy or does not by the luck of one evaluation.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokencredit.lab.compare.curves import Curve, accuracy_at, common_horizon
from tokencredit.lab.compare.intervals import DRAWS, Bounds, Intervals, Numbers, between, freedom_of, resamples, student

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

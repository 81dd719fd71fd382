"""Learning curves, and the paired difference of two recipes on the same base and seed.

A curve holds points (rollouts used, held-out accuracy), the first at 0 rollouts, interpolated linearly.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.statistics import DRAWS, Bounds, Intervals, Numbers, between, freedom_of, resamples, student

Curve = Sequence[tuple[float, float]]


def accuracy_at(curve: Curve, rollouts: float) -> float:
    """Accuracy by linear interpolation between the two nearest evaluations."""
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
    """Rollouts at which the curve first reaches `level`; 0 if the base model already does, None if no evaluation does."""
    reached = next((place for place, (_, accuracy) in enumerate(curve) if accuracy >= level), None)
    if reached is None or reached == 0:
        return None if reached is None else float(curve[0][0])
    (left, low), (right, high) = curve[reached - 1], curve[reached]
    return left + (right - left) * (level - low) / (high - low)


def common_horizon(curves: Sequence[Curve]) -> float:
    """The rollouts that every curve covers: a recipe that samples more per step gets no advantage from the surplus."""
    return min(curve[-1][0] for curve in curves)


def on_grid(curves: Sequence[Curve], *, places: int = 41) -> tuple[list[float], list[list[float]]]:
    """Evenly spaced rollouts up to the common horizon, and each curve's accuracy there."""
    horizon = common_horizon(curves)
    grid = [horizon * place / (places - 1) for place in range(places)]
    return grid, [[accuracy_at(curve, rollouts) for rollouts in grid] for curve in curves]


MOST_PLACES = 200


class Reached(NamedTuple):
    low: float
    """Lower bound of the log ratio of rollouts, averaged over bases."""
    high: float
    intervals: Intervals
    never: int
    """Bases on which the recipe's mean curve never reaches the target; then there is no upper bound."""


def rollouts_to_target(
    ours: Sequence[Sequence[Curve]], theirs: Sequence[Sequence[Curve]], *, over_all: bool, draws: int = DRAWS
) -> Reached | None:
    """Log ratio: rollouts to the reference's final accuracy over those the reference needed, or with `over_all` all that it used.

    Both are read from mean curves: whether a single run on a plateau reaches a given accuracy is chance. One entry per base, runs ordered
    by seed; a bootstrap resamples seeds, both runs of a seed together. None if a base model has that accuracy before any training.
    """
    once = [np.ones((1, len(own))) for own in ours]
    sizes = tuple(len(own) for own in ours)
    resampled = resamples(sizes, draws)
    low, high = _log_ratios(ours, theirs, once, over_all=over_all)
    if not ours or not np.isfinite(low[0]):
        return None
    lows, highs = _log_ratios(ours, theirs, resampled, over_all=over_all)
    never = sum(
        bool(np.isinf(_log_ratios([one], [other], [count], over_all=over_all)[1][0]))
        for one, other, count in zip(ours, theirs, once, strict=True)
    )
    freedom, (least, most) = freedom_of(sizes), (float(low[0]), float(high[0]))
    errors = Bounds(*(_error(one, sizes) for one in (lows, highs)))
    intervals = Intervals(between(lows, highs, sizes), student(Bounds(least, most), errors, freedom), freedom)
    return Reached(least, most, intervals, never)


def _error(resampled: Numbers, sizes: Sequence[int]) -> float:
    """Bootstrap standard error, scaled by sqrt(n / degrees of freedom); for a plain mean over seeds this is the t test's."""
    if not freedom_of(sizes) or not np.isfinite(resampled).all():
        return math.inf
    return float(resampled.std()) * math.sqrt(sum(sizes) / freedom_of(sizes))


def _log_ratios(
    ours: Sequence[Sequence[Curve]], theirs: Sequence[Sequence[Curve]], counts: Sequence[Numbers], *, over_all: bool
) -> tuple[Numbers, Numbers]:
    """Lower and upper bound for each resample."""
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
    """A grid of rollouts, and every resample's mean accuracy on it."""
    horizon = common_horizon(curves)
    places = sorted({float(rollouts) for curve in curves for rollouts, _ in curve if rollouts <= horizon})
    if len(places) > MOST_PLACES:
        places = np.linspace(0, horizon, MOST_PLACES).tolist()
    table = np.array([[accuracy_at(curve, rollouts) for rollouts in places] for curve in curves])
    return np.array(places), counts @ table / counts.sum(1, keepdims=True)


def _first(grid: Numbers, means: Numbers, level: Numbers) -> Numbers:
    """Rollouts at which each curve first reaches its level, interpolated linearly; infinity if it never does."""
    # The tolerance: a mean is rounded in another order than the level it is compared with.
    above = means >= level[:, None] - 1e-12
    right = above.argmax(1)
    left, rows = np.maximum(right - 1, 0), np.arange(len(means))
    low, high = means[rows, left], means[rows, right]
    rise = np.where(high > low, high - low, 1.0)
    share = np.clip((level - low) / rise, 0.0, 1.0)
    found = np.where(right == 0, grid[0], grid[left] + (grid[right] - grid[left]) * share)
    return np.where(above.any(1), found, np.inf)


Pair = tuple[Row, Row]
"""The recipe's run and the reference's run of one seed."""


class Measure(NamedTuple):
    title: str
    what: str
    ratio: bool
    """True: a log ratio of rollouts, shown as a factor, less is better. False: a difference."""
    percent: bool = False


MEASURES: dict[str, Measure] = {
    "area": Measure("curve area", "mean held-out accuracy over the rollouts that all runs of a base cover", False, True),
    "final": Measure("final accuracy", "sampled held-out accuracy (pass@1) after the run", False, True),
    "to_threshold": Measure("rollouts to threshold", "rollouts until held-out accuracy first reaches the threshold", True),
    "to_final": Measure(
        "rollouts to the reference's final",
        "until the mean curve reaches the reference's last accuracy, over what that one took",
        True,
    ),
    "to_final_of_all": Measure(
        "the same, over all rollouts of the reference",
        "until the mean curve reaches the reference's last accuracy, over all that the reference used",
        True,
    ),
    "pass_at_k": Measure("pass@k", "share of held-out problems that the best of k samples solves, after the run", False, True),
    "greedy": Measure("greedy accuracy", "of the most likely response, after the run", False, True),
    "entropy": Measure("end entropy", "nats per token in the last training batch", False),
    "rollouts": Measure("rollouts used", "everything that was sampled for training, revisions and continuations included", True),
}

BY_MEAN_CURVES = ("to_final", "to_final_of_all")
"""Measures of all seeds together; the others are computed per run."""

TABLE_MEASURES = ("area", "final", "to_threshold", "to_final", "pass_at_k", "entropy")
"""Measures that the table shows; the JSON holds all."""

RANKED = ("area", "final", "to_threshold")
"""Measures with a probability of improvement."""


def bounds_to(row: Row, level: float) -> Bounds:
    """Rollouts until a level is reached; a run that never reached it is censored: it needs more than it used."""
    reached = rollouts_to(row["curve"], level)
    return Bounds(row["rollouts"], math.inf) if reached is None else Bounds(reached, reached)


def values(name: str, row: Row, *, horizon: float, threshold: float) -> Bounds:
    """The value of a measure for one run."""
    if name == "to_threshold":
        return bounds_to(row, threshold)
    found = {
        "area": lambda: area(row["curve"], horizon),
        "final": lambda: row["after"]["sampled"],
        "pass_at_k": lambda: row["after"]["pass_at_k"],
        "greedy": lambda: row["after"]["greedy"],
        "entropy": lambda: row["entropy"],
        "rollouts": lambda: row["rollouts"],
    }[name]()
    found = math.nan if found is None else float(found)
    return Bounds(found, found)


def difference(name: str, ours: Row, theirs: Row, *, horizon: float, threshold: float) -> Bounds | None:
    """Recipe minus reference; None if undefined: entropy never measured, or a level that the base model has before any training."""
    one, other = (values(name, row, horizon=horizon, threshold=threshold) for row in (ours, theirs))
    if any(math.isnan(value) for value in (*one, *other)):
        return None
    if not MEASURES[name].ratio:
        return Bounds(one.low - other.high, one.high - other.low)
    if one.low <= 0 or other.low <= 0:
        return None
    low = -math.inf if math.isinf(other.high) else math.log(one.low / other.high)
    high = math.inf if math.isinf(one.high) else math.log(one.high / other.low)
    return Bounds(low, high)


def pair_up(rows: Sequence[Row], recipe: str, reference: str) -> dict[str, list[Pair]]:
    """Base -> pairs of runs with the same seed, ordered by seed; reported runs only."""
    by_place: dict[str, dict[tuple[str, int], Row]] = {recipe: {}, reference: {}}
    for row in rows:
        if row["recipe"] in by_place and not row["tuning"]:
            by_place[row["recipe"]][row["base"], row["seed"]] = row
    ours, theirs = by_place[recipe], by_place[reference]
    found: dict[str, list[Pair]] = {}
    for base, seed in sorted(ours.keys() & theirs.keys(), key=lambda place: place[1]):
        found.setdefault(base, []).append((ours[base, seed], theirs[base, seed]))
    return found


def differences(
    name: str, pairs: Mapping[str, Sequence[Pair]], *, horizons: Mapping[str, float], threshold: float
) -> dict[str, list[Bounds]]:
    """Base -> the differences that are defined."""
    return {
        base: [
            found for one, other in own if (found := difference(name, one, other, horizon=horizons[base], threshold=threshold)) is not None
        ]
        for base, own in pairs.items()
    }

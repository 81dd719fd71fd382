"""What paired differences are worth. Numbers in, numbers out; a stratum holds the pairs of one base.

A difference is an interval [low, high]: a point where it was measured, half a line where one run never got there.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tokencredit.lab.compare.intervals import DRAWS, Bounds, Intervals, Numbers, between, freedom_of, resamples, student
from tokencredit.stats import wilson


class Paired(NamedTuple):
    pairs: int
    low: float
    """Mean over bases of the mean over pairs, at least."""
    high: float
    """At most; the same number where every pair was measured."""
    intervals: Intervals
    spread: float | None
    """Standard deviation of a pair's difference within its base, pooled; None with censored pairs or one pair to a base."""
    t: float | None

    @property
    def exact(self) -> bool:
        return self.low == self.high


def _weighted_mean(values: Numbers, counts: Numbers) -> Numbers:
    """Over the last axis of `counts`; an infinite value counts only where it was drawn."""
    finite = np.where(np.isfinite(values), values, 0.0)
    means = counts @ finite / counts.sum(-1)
    for value in (np.inf, -np.inf):
        means = np.where(counts @ (values == value) > 0, value, means)
    return means


def paired(strata: Sequence[Sequence[Bounds]], draws: int = DRAWS) -> Paired | None:
    """None where a stratum is empty. Bases count equally, however many pairs each has."""
    if not strata or not all(strata):
        return None
    lows, highs = ([np.array([getattr(pair, side) for pair in stratum]) for stratum in strata] for side in ("low", "high"))
    once = [np.ones((1, len(stratum))) for stratum in strata]
    sizes = tuple(len(stratum) for stratum in strata)
    drawn = resamples(sizes, draws)

    def over_bases(values: Sequence[Numbers], counts: Sequence[Numbers]) -> Numbers:
        return np.mean([_weighted_mean(one, count) for one, count in zip(values, counts, strict=True)], axis=0)

    low, high = float(over_bases(lows, once)[0]), float(over_bases(highs, once)[0])
    bootstrap = between(over_bases(lows, drawn), over_bases(highs, drawn), sizes)
    pairs, freedom = sum(sizes), freedom_of(sizes)
    errors = Bounds(*(_standard_error(one, freedom) for one in (lows, highs)))
    intervals = Intervals(bootstrap, student(Bounds(low, high), errors, freedom), freedom)
    measured = all(pair.low == pair.high for stratum in strata for pair in stratum)
    if not measured or not freedom:
        return Paired(pairs, low, high, intervals, None, None)
    # Rounding leaves a spread of 1e-17 where all differences are alike.
    t = low / errors.low if errors.low > 1e-12 * max(1.0, abs(low)) else None
    return Paired(pairs, low, high, intervals, pooled_spread(lows), t)


def _standard_error(strata: Sequence[Numbers], freedom: int) -> float:
    """Of the mean over bases; infinite where a number is, or where nothing shows a spread."""
    if not freedom or not all(np.isfinite(stratum).all() for stratum in strata):
        return math.inf
    return pooled_spread(strata) * math.sqrt(sum(1 / len(stratum) for stratum in strata)) / len(strata)


def pooled_spread(strata: Sequence[Numbers]) -> float:
    squares = sum(float(((stratum - stratum.mean()) ** 2).sum()) for stratum in strata)
    return math.sqrt(squares / freedom_of([len(stratum) for stratum in strata]))


class Improvement(NamedTuple):
    probability: float
    interval: Bounds
    """Wilson's with as many trials as pairs: with independent runs the variance is at most p (1 - p) / n, and less where luck is shared."""
    bootstrap: Bounds
    """A recipe that won everything wins every resample too: then this has no width."""
    wins: float
    """Pairs won, a tie counting half."""
    pairs: int


def improvement(wins: Sequence[Numbers], draws: int = DRAWS) -> Improvement | None:
    """P(X > Y), the Mann-Whitney statistic averaged over bases (Agarwal et al. 2021, 2108.13264).

    `wins[base][i, j]` is 1 where run i of X is better than run j of Y, 1/2 for a tie or where nobody can tell, else 0. Seeds are
    resampled, both runs of a seed together: they share their problems.
    """
    if not wins or not all(len(one) for one in wins):
        return None
    sizes = tuple(len(one) for one in wins)
    drawn = resamples(sizes, draws)
    each = [np.einsum("ri,ij,rj->r", count, one, count, optimize=True) / len(one) ** 2 for one, count in zip(wins, drawn, strict=True)]
    means, probability = np.mean(each, axis=0), float(np.mean([one.mean() for one in wins]))
    return Improvement(
        probability=probability,
        interval=Bounds(*wilson(probability, sum(sizes))),
        bootstrap=between(means, means, sizes),
        wins=float(sum(np.trace(one) for one in wins)),
        pairs=sum(sizes),
    )


def outcomes(ours: Sequence[Bounds], theirs: Sequence[Bounds]) -> Numbers:
    """1 where ours is surely larger, 0 where surely smaller, else 1/2; both as intervals."""

    def score(one: Bounds, other: Bounds) -> float:
        larger, smaller = _above(one, other), _above(other, one)
        return 0.5 if larger == smaller else float(larger)

    return np.array([[score(one, other) for other in theirs] for one in ours], dtype=np.float64)


def _above(one: Bounds, other: Bounds) -> bool:
    """An end of half a line is not part of it: who had not arrived after 100 rollouts needs more than 100."""
    open_ended = one.low != one.high or other.low != other.high
    return one.low > other.high or (open_ended and one.low == other.high)


def points(values: Iterator[float] | Sequence[float]) -> list[Bounds]:
    """Numbers that were measured, as intervals without width."""
    return [Bounds(value, value) for value in values]

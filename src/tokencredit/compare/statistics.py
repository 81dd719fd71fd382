"""What paired differences are worth. Numbers in, numbers out; a stratum holds the pairs of one base.

A difference is an interval [low, high]: a point where it was measured, half a line where one run never got there.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokencredit.seeds import derive_seed
from tokencredit.student import critical

Numbers = NDArray[np.float64]
DRAWS = 10_000
LEVEL = 0.95


class Bounds(NamedTuple):
    """A difference that lies between two numbers."""

    low: float
    high: float


class Paired(NamedTuple):
    pairs: int
    low: float
    """Mean over bases of the mean over pairs, at least."""
    high: float
    """At most; the same number where every pair was measured."""
    interval: Bounds
    """Percentile bootstrap over pairs, within bases."""
    spread: float | None
    """Standard deviation of a pair's difference within its base, pooled; None with censored pairs or one pair to a base."""
    t: float | None
    freedom: int
    t_interval: Bounds | None

    @property
    def exact(self) -> bool:
        return self.low == self.high


@lru_cache(maxsize=64)
def resamples(sizes: tuple[int, ...], draws: int = DRAWS) -> list[Numbers]:
    """How often each pair is drawn, [resample, pair] for every stratum: all possible resamples where there are no more than `draws`."""
    if math.prod(size**size for size in sizes) <= draws:
        every = [_all_counts(size) for size in sizes]
        chosen = np.array(list(itertools.product(*(range(len(one)) for one in every))))
        return [one[chosen[:, place]] for place, one in enumerate(every)]
    generator = np.random.default_rng(derive_seed(0, "compare-bootstrap", *sizes))
    return [generator.multinomial(size, [1 / size] * size, size=draws).astype(np.float64) for size in sizes]


def _all_counts(size: int) -> Numbers:
    return np.array([np.bincount(chosen, minlength=size) for chosen in itertools.product(range(size), repeat=size)], dtype=np.float64)


def _weighted_mean(values: Numbers, counts: Numbers) -> Numbers:
    """Over the last axis of `counts`; an infinite value counts only where it was drawn."""
    finite = np.where(np.isfinite(values), values, 0.0)
    means = counts @ finite / counts.sum(-1)
    for value in (np.inf, -np.inf):
        means = np.where(counts @ (values == value) > 0, value, means)
    return means


def percentiles(values: Numbers, level: float = LEVEL) -> Bounds:
    """Order statistics with as many resamples beyond on either side."""
    ordered = np.sort(values)
    beyond = math.floor((1 - level) / 2 * len(ordered))
    return Bounds(float(ordered[beyond]), float(ordered[len(ordered) - 1 - beyond]))


def paired(strata: Sequence[Sequence[Bounds]], draws: int = DRAWS) -> Paired | None:
    """None where a stratum is empty. Bases count equally, however many pairs each has."""
    if not strata or not all(strata):
        return None
    lows, highs = ([np.array([getattr(pair, side) for pair in stratum]) for stratum in strata] for side in ("low", "high"))
    once = [np.ones((1, len(stratum))) for stratum in strata]
    drawn = resamples(tuple(len(stratum) for stratum in strata), draws)

    def over_bases(values: Sequence[Numbers], counts: Sequence[Numbers]) -> Numbers:
        return np.mean([_weighted_mean(one, count) for one, count in zip(values, counts, strict=True)], axis=0)

    low, high = float(over_bases(lows, once)[0]), float(over_bases(highs, once)[0])
    interval = Bounds(percentiles(over_bases(lows, drawn)).low, percentiles(over_bases(highs, drawn)).high)
    pairs, freedom = sum(map(len, strata)), sum(len(stratum) - 1 for stratum in strata)
    measured = all(pair.low == pair.high for stratum in strata for pair in stratum)
    spread = pooled_spread(lows) if measured and freedom > 0 else None
    if spread is None:
        return Paired(pairs, low, high, interval, None, None, freedom, None)
    error = spread * math.sqrt(sum(1 / len(stratum) for stratum in strata)) / len(strata)
    half = critical(freedom) * error
    # Rounding leaves a spread of 1e-17 where all differences are alike.
    t = low / error if error > 1e-12 * max(1.0, abs(low)) else None
    return Paired(pairs, low, high, interval, spread, t, freedom, Bounds(low - half, low + half))


def pooled_spread(strata: Sequence[Numbers]) -> float:
    squares = sum(float(((stratum - stratum.mean()) ** 2).sum()) for stratum in strata)
    return math.sqrt(squares / sum(len(stratum) - 1 for stratum in strata))


class Improvement(NamedTuple):
    probability: float
    interval: Bounds
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
    drawn = resamples(tuple(len(one) for one in wins), draws)
    each = [np.einsum("ri,ij,rj->r", count, one, count, optimize=True) / len(one) ** 2 for one, count in zip(wins, drawn, strict=True)]
    return Improvement(
        probability=float(np.mean([one.mean() for one in wins])),
        interval=percentiles(np.mean(each, axis=0)),
        wins=float(sum(np.trace(one) for one in wins)),
        pairs=sum(len(one) for one in wins),
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

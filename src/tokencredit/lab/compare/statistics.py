"""Statistics of paired differences: intervals, probability of improvement, power. A stratum holds the pairs of one base.

A difference is an interval [low, high]: a point if it was measured, unbounded on one side if one run never reached the target.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokencredit.seeds import derive_seed
from tokencredit.stats import critical, wilson

Numbers = NDArray[np.float64]
DRAWS = 10_000
FEW = 8
"""Below this many degrees of freedom no bootstrap percentile is wide enough: Student's t interval is shown."""


class Bounds(NamedTuple):
    """A number known to lie in [low, high]."""

    low: float
    high: float


UNKNOWN = Bounds(-math.inf, math.inf)
"""The interval from one pair per base: unbounded."""


class Intervals(NamedTuple):
    """Two 95 % intervals of the same estimate: bootstrap and Student's t."""

    bootstrap: Bounds
    t: Bounds
    freedom: int

    @property
    def by(self) -> str:
        return "t" if self.freedom < FEW else "bootstrap"

    @property
    def shown(self) -> Bounds:
        return self.t if self.freedom < FEW else self.bootstrap


def freedom_of(sizes: Sequence[int]) -> int:
    return sum(size - 1 for size in sizes)


@lru_cache(maxsize=64)
def resamples(sizes: tuple[int, ...], draws: int = DRAWS) -> list[Numbers]:
    """How often each resample holds each pair, [resample, pair] per stratum; all possible resamples if there are at most `draws`."""
    if math.prod(size**size for size in sizes) <= draws:
        every = [_all_counts(size) for size in sizes]
        chosen = np.array(list(itertools.product(*(range(len(one)) for one in every))))
        return [one[chosen[:, place]] for place, one in enumerate(every)]
    generator = np.random.default_rng(derive_seed(0, "compare-bootstrap", *sizes))
    return [generator.multinomial(size, [1 / size] * size, size=draws).astype(np.float64) for size in sizes]


def _all_counts(size: int) -> Numbers:
    return np.array([np.bincount(chosen, minlength=size) for chosen in itertools.product(range(size), repeat=size)], dtype=np.float64)


@lru_cache(maxsize=64)
def tail(sizes: tuple[int, ...]) -> float:
    """The share of resamples to leave out on either side: Phi(-t sqrt(n / f)) instead of 2.5 %.

    Of n pairs with f degrees of freedom, resampling shows f / n of the variance, and nothing of how unsure that is. With this share normal
    differences get the width that Student's t gives them (Hesterberg 2015, "expanded percentiles").
    """
    freedom = freedom_of(sizes)
    return 0.5 * math.erfc(critical(freedom) * math.sqrt(sum(sizes) / freedom / 2)) if freedom else 0.0


def between(lows: Numbers, highs: Numbers, sizes: tuple[int, ...]) -> Bounds:
    """The bootstrap interval from resampled lower and upper bounds; expanded percentiles, for few seeds."""
    if freedom_of(sizes) == 0:
        return UNKNOWN
    beyond = tail(sizes)
    return Bounds(cut(lows, beyond).low, cut(highs, beyond).high)


def cut(values: Numbers, beyond: float) -> Bounds:
    """Order statistics with the share `beyond` outside on either side."""
    ordered = np.sort(values)
    left_out = math.floor(beyond * len(ordered))
    return Bounds(float(ordered[left_out]), float(ordered[len(ordered) - 1 - left_out]))


def student(estimate: Bounds, errors: Bounds, freedom: int) -> Bounds:
    """Student's t interval, each end from the spread of its own bounds; unbounded if one pair's bound is infinite."""
    if freedom == 0:
        return UNKNOWN
    limit = critical(freedom)
    low = estimate.low - limit * errors.low if math.isfinite(errors.low) else -math.inf
    return Bounds(low, estimate.high + limit * errors.high if math.isfinite(errors.high) else math.inf)


class Paired(NamedTuple):
    pairs: int
    low: float
    """Lower bound of the mean over bases of the mean over pairs."""
    high: float
    """Upper bound; equal to `low` if no pair is censored."""
    intervals: Intervals
    spread: float | None
    """Standard deviation of a pair's difference within its base, pooled; None with censored pairs or one pair to a base."""
    t: float | None

    @property
    def exact(self) -> bool:
        return self.low == self.high


def _weighted_mean(values: Numbers, counts: Numbers) -> Numbers:
    """Mean over the last axis with weights `counts`; an infinite value counts only in resamples that hold it."""
    finite = np.where(np.isfinite(values), values, 0.0)
    means = counts @ finite / counts.sum(-1)
    for value in (np.inf, -np.inf):
        means = np.where(counts @ (values == value) > 0, value, means)
    return means


def paired(strata: Sequence[Sequence[Bounds]], draws: int = DRAWS) -> Paired | None:
    """Mean difference with intervals; bases weigh equally, however many pairs each has. None if a stratum is empty."""
    if not strata or not all(strata):
        return None
    lows, highs = ([np.array([getattr(pair, side) for pair in stratum]) for stratum in strata] for side in ("low", "high"))
    once = [np.ones((1, len(stratum))) for stratum in strata]
    sizes = tuple(len(stratum) for stratum in strata)
    counts_by_base = resamples(sizes, draws)

    def over_bases(values: Sequence[Numbers], counts: Sequence[Numbers]) -> Numbers:
        return np.mean([_weighted_mean(one, count) for one, count in zip(values, counts, strict=True)], axis=0)

    low, high = float(over_bases(lows, once)[0]), float(over_bases(highs, once)[0])
    bootstrap = between(over_bases(lows, counts_by_base), over_bases(highs, counts_by_base), sizes)
    pairs, freedom = sum(sizes), freedom_of(sizes)
    errors = Bounds(*(_standard_error(one, freedom) for one in (lows, highs)))
    intervals = Intervals(bootstrap, student(Bounds(low, high), errors, freedom), freedom)
    measured = all(pair.low == pair.high for stratum in strata for pair in stratum)
    if not measured or not freedom:
        return Paired(pairs, low, high, intervals, None, None)
    # Rounding leaves a spread of 1e-17 if all differences are equal.
    t = low / errors.low if errors.low > 1e-12 * max(1.0, abs(low)) else None
    return Paired(pairs, low, high, intervals, pooled_spread(lows), t)


def _standard_error(strata: Sequence[Numbers], freedom: int) -> float:
    """Standard error of the mean over bases; infinite if a number is infinite or the spread is unknown."""
    if not freedom or not all(np.isfinite(stratum).all() for stratum in strata):
        return math.inf
    return pooled_spread(strata) * math.sqrt(sum(1 / len(stratum) for stratum in strata)) / len(strata)


def pooled_spread(strata: Sequence[Numbers]) -> float:
    squares = sum(float(((stratum - stratum.mean()) ** 2).sum()) for stratum in strata)
    return math.sqrt(squares / freedom_of([len(stratum) for stratum in strata]))


class Improvement(NamedTuple):
    probability: float
    interval: Bounds
    """Wilson's interval with as many trials as pairs: the variance is at most p (1 - p) / n for independent runs, less for paired ones."""
    bootstrap: Bounds
    """The bootstrap interval; it has no width for a recipe that won every pair."""
    wins: float
    """Pairs won; a tie counts half."""
    pairs: int


def improvement(wins: Sequence[Numbers], draws: int = DRAWS) -> Improvement | None:
    """P(X > Y), the Mann-Whitney statistic averaged over bases (Agarwal et al. 2021, 2108.13264).

    `wins[base][i, j]` is 1 where run i of X is better than run j of Y, 1/2 for a tie or if unknown, else 0. Seeds are
    resampled, both runs of a seed together: they share their problems.
    """
    if not wins or not all(len(one) for one in wins):
        return None
    sizes = tuple(len(one) for one in wins)
    counts_by_base = resamples(sizes, draws)
    each = [
        np.einsum("ri,ij,rj->r", count, one, count, optimize=True) / len(one) ** 2 for one, count in zip(wins, counts_by_base, strict=True)
    ]
    means, probability = np.mean(each, axis=0), float(np.mean([one.mean() for one in wins]))
    return Improvement(
        probability=probability,
        interval=Bounds(*wilson(probability, sum(sizes))),
        bootstrap=between(means, means, sizes),
        wins=float(sum(np.trace(one) for one in wins)),
        pairs=sum(sizes),
    )


def outcomes(ours: Sequence[Bounds], theirs: Sequence[Bounds]) -> Numbers:
    """1 if our interval lies above theirs, 0 if below, else 1/2."""

    def score(one: Bounds, other: Bounds) -> float:
        larger, smaller = _above(one, other), _above(other, one)
        return 0.5 if larger == smaller else float(larger)

    return np.array([[score(one, other) for other in theirs] for one in ours], dtype=np.float64)


def _above(one: Bounds, other: Bounds) -> bool:
    """Unbounded intervals are open at their finite end: a run that had not reached the target after 100 rollouts needs more than 100."""
    open_ended = one.low != one.high or other.low != other.high
    return one.low > other.high or (open_ended and one.low == other.high)


def points(values: Iterator[float] | Sequence[float]) -> list[Bounds]:
    """Measured numbers as intervals of width 0."""
    return [Bounds(value, value) for value in values]


MOST_SEEDS = 10_000
limit_of = cache(critical)
"""Cache size: summaries repeat few arguments, and each result is a search."""


def _normal_above(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def power(shift: float, freedom: int, alpha: float = 0.05, *, cuts: int = 800) -> float:
    """P(|T| > critical) where T is (Z + shift) / sqrt(chi2 / freedom): the noncentral t, by Simpson's rule over the estimated spread."""
    limit = limit_of(freedom, alpha)
    end = 1 + 9 / math.sqrt(freedom)
    constant = math.log(2) + (freedom / 2) * math.log(freedom / 2) - math.lgamma(freedom / 2)
    total = 0.0
    for place in range(cuts + 1):
        spread = end * place / cuts
        if spread == 0:
            density = math.exp(constant) if freedom == 1 else 0.0
        else:
            density = math.exp(constant + (freedom - 1) * math.log(spread) - freedom * spread * spread / 2)
        beyond = _normal_above(limit * spread - shift) + _normal_above(limit * spread + shift)
        weight = 1 if place in (0, cuts) else 4 if place % 2 else 2
        total += weight * density * beyond
    return total * end / cuts / 3


def seeds_needed(effect: float, spread: float, *, strata: int = 1, alpha: float = 0.05, wanted: float = 0.8) -> int | None:
    """Fewest seeds per base with which a paired, two-sided t test detects `effect` with probability `wanted`.

    `spread` is the standard deviation of paired differences within a base. None where more than MOST_SEEDS would be needed.
    """
    if effect == 0 or not math.isfinite(effect) or not math.isfinite(spread):
        return None

    def enough(seeds: int) -> bool:
        pairs = seeds * strata
        return spread == 0 or power(abs(effect) / spread * math.sqrt(pairs), pairs - strata, alpha) >= wanted

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(high, 2)

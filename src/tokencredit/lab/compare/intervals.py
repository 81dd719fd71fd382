"""Intervals by drawing seeds again, within each base: wider than plain percentiles, which are too narrow for a few seeds."""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokencredit.seeds import derive_seed
from tokencredit.stats import critical

Numbers = NDArray[np.float64]
DRAWS = 10_000
FEW = 8
"""Degrees of freedom below which no choice among resamples is wide enough: there Student's t is shown."""


class Bounds(NamedTuple):
    """A difference that lies between two numbers."""

    low: float
    high: float


UNKNOWN = Bounds(-math.inf, math.inf)
"""All that one pair to a base tells."""


class Intervals(NamedTuple):
    """At 95 %, in two ways."""

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
    """How often each pair is drawn, [resample, pair] for every stratum: all possible resamples where there are no more than `draws`."""
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
    """From resampled lower and upper bounds."""
    if freedom_of(sizes) == 0:
        return UNKNOWN
    beyond = tail(sizes)
    return Bounds(cut(lows, beyond).low, cut(highs, beyond).high)


def cut(values: Numbers, beyond: float) -> Bounds:
    """Order statistics with that share beyond on either side."""
    ordered = np.sort(values)
    left_out = math.floor(beyond * len(ordered))
    return Bounds(float(ordered[left_out]), float(ordered[len(ordered) - 1 - left_out]))


def student(estimate: Bounds, errors: Bounds, freedom: int) -> Bounds:
    """Each end by the spread of its own bounds; a bound that is infinite for one pair is no end."""
    if freedom == 0:
        return UNKNOWN
    limit = critical(freedom)
    low = estimate.low - limit * errors.low if math.isfinite(errors.low) else -math.inf
    return Bounds(low, estimate.high + limit * errors.high if math.isfinite(errors.high) else math.inf)

"""How many pairs an effect needs to be seen."""

import math
from functools import cache

from tokencredit.stats import critical

MOST_SEEDS = 10_000
limit_of = cache(critical)
"""The same few are asked for over and over, and each is a search."""


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
    """Fewest seeds per base with which a paired, two-sided t test sees `effect` with probability `wanted`.

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

"""Student's t: tails, quantiles, and how many pairs an effect needs. Standard library only."""

import math

MOST_SEEDS = 10_000


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method; for x < (a + 1) / (a + b + 2)."""
    tiny = 1e-300
    upper, lower = 1.0, 1.0 - (a + b) * x / (a + 1)
    lower = 1 / (lower if abs(lower) > tiny else tiny)
    value = lower
    for step in range(1, 10_000):
        for term in (
            step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step)),
            -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1)),
        ):
            lower = 1 + term * lower
            upper = 1 + term / upper
            lower = 1 / (lower if abs(lower) > tiny else tiny)
            upper = upper if abs(upper) > tiny else tiny
            value *= lower * upper
        if abs(lower * upper - 1) < 1e-15:
            return value
    return value


def incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), regularised."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def two_sided(t: float, freedom: float) -> float:
    """P(|T| > |t|)."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def critical(freedom: float, alpha: float = 0.05) -> float:
    """The |t| that chance exceeds with probability `alpha`."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


def _normal_above(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def power(shift: float, freedom: int, alpha: float = 0.05, *, cuts: int = 800) -> float:
    """P(|T| > critical) where T is (Z + shift) / sqrt(chi2 / freedom): the noncentral t, by Simpson's rule over the estimated spread."""
    limit = critical(freedom, alpha)
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

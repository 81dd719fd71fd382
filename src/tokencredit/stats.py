"""Student's t, the distribution that paired differences are held against. Standard library only."""

import math


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

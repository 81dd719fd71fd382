"""Statistics on plain numbers, without tensors: Student's t for paired differences, Wilson intervals, and estimates over problems."""

import math
from collections.abc import Sequence
from typing import NamedTuple


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
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def two_sided(t: float, freedom: float) -> float:
    """P(|T| > |t|) for Student's t with `freedom` degrees of freedom."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def critical(freedom: float, alpha: float = 0.05) -> float:
    """The |t| that Student's t exceeds with probability `alpha`."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


Z = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal distribution."""

EXPLAINED = (
    "95 % Wilson score interval of a binomial share over the number of problems. For sampled accuracy the samples of one problem "
    "count as one observation, so that interval is on the wide side."
)


class Interval(NamedTuple):
    low: float
    high: float


def wilson(share: float, problems: int) -> Interval:
    """Wilson's interval: all p with |share - p| <= z sqrt(p (1 - p) / n); inside [0, 1], and never a point at 0 or 1."""
    if problems < 1 or not 0 <= share <= 1:
        raise ValueError(f"share is {share} of {problems} problems; give a share between 0 and 1 of at least one problem")
    spread = Z**2 / problems
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / problems + spread / (4 * problems))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def pass_at_k(right: int, samples: int, k: int) -> float:
    """Probability that k of a problem's n samples, drawn without replacement, contain a right one: 1 - C(n-c, k) / C(n, k).

    Unbiased for the best of k fresh samples (Chen et al. 2021, arXiv:2107.03374), unlike 1 - (1 - c/n)^k, which is too low.
    Exact integers until the one division, so nothing overflows or cancels.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(f"k is {k} and {right} of {samples} samples are right; give 1 <= k <= samples and 0 <= right <= samples")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def mixed_at(scores: Sequence[float], size: int) -> float:
    """Probability that a group of `size` of a problem's samples contains two different scores, without which advantages are 0.

    A NaN score is ungraded and differs from no other. Unbiased in the same sense as `pass_at_k`.
    """
    if not 1 <= size <= len(scores):
        raise ValueError(f"a group of {size} cannot be drawn from {len(scores)} samples")
    graded = [score for score in scores if score == score]
    ungraded = len(scores) - len(graded)
    kinds = [graded.count(score) for score in set(graded)]
    if not kinds:
        return 0.0
    # Groups whose graded members all have one score; those without a graded member were counted once for every score.
    equal = sum(math.comb(count + ungraded, size) for count in kinds) - (len(kinds) - 1) * math.comb(ungraded, size)
    return 1 - equal / math.comb(len(scores), size)


def over_problems(values: Sequence[float], samples: int) -> Estimate:
    """Mean over problems of one number in [0, 1] per problem, with a Wilson interval at the effective number of observations.

    Problems are drawn independently; samples of one problem share its difficulty and are not independent. n_eff = m (1 - m) / Var(mean),
    with the variance between problems, widened like Student's t; it lies between the number of problems (all samples of a problem
    equal) and the number of samples (all problems equal). A t-interval or a bootstrap over problems would shrink to a point where all
    problems, or none, are solved; this interval does not.
    """
    problems = len(values)
    mean = math.fsum(values) / problems
    variance = math.fsum((value - mean) ** 2 for value in values) / max(1, problems - 1) / problems
    most = problems * samples
    effective = min(most, mean * (1 - mean) / variance) if variance > 0 else most if 0 < mean < 1 else problems
    widened = effective * (Z / _students_t(problems - 1)) ** 2 if problems > 1 else 1
    return Estimate(mean, *wilson(min(1.0, max(0.0, mean)), max(problems, int(widened))))


def _students_t(freedom: int) -> float:
    """Two-sided 95 % quantile by a series in 1 / freedom: within 1 % from freedom 5 on, too small below, where callers have a floor."""
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


def powers_of_two(samples: int) -> list[int]:
    """1, 2, 4, ... and the number of samples itself."""
    return sorted({2**power for power in range(samples.bit_length()) if 2**power <= samples} | {samples})

"""How sure a held-out accuracy is."""

import math
from typing import NamedTuple

Z = 1.959963984540054
"""Standard normal quantile of 95 %, both sides."""

EXPLAINED = (
    "95 % Wilson score interval of a binomial share over the number of problems. For sampled accuracy the samples of one problem "
    "count as one observation, so that interval is on the wide side."
)


class Interval(NamedTuple):
    low: float
    high: float


def wilson(share: float, problems: int) -> Interval:
    """Every p with |share - p| <= z sqrt(p (1 - p) / n); never outside [0, 1], and not a point at 0 or 1."""
    if problems < 1 or not 0 <= share <= 1:
        raise ValueError(f"share is {share} of {problems} problems; give a share between 0 and 1 of at least one problem")
    spread = Z**2 / problems
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / problems + spread / (4 * problems))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))

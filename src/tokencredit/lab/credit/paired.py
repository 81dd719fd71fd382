"""Means of paired differences, with Student's interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tokencredit.stats import critical


class Paired(NamedTuple):
    """A mean of paired differences with its 95 % interval; NaN where it cannot be told."""

    mean: float
    low: float
    high: float
    t: float
    pairs: int


def paired(differences: Sequence[float]) -> Paired:
    """Student's interval of the mean. Fewer than two pairs have no interval; differences without spread have t 0 or NaN."""
    count = len(differences)
    if count == 0:
        return Paired(math.nan, math.nan, math.nan, math.nan, 0)
    mean = math.fsum(differences) / count
    if count == 1:
        return Paired(mean, math.nan, math.nan, math.nan, 1)
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / (count - 1) / count)
    if error == 0:
        return Paired(mean, mean, mean, 0.0 if mean == 0 else math.nan, count)
    reach = critical(count - 1) * error
    return Paired(mean, mean - reach, mean + reach, mean / error, count)


def surviving_t(comparisons: int, freedom: int, level: float = 0.05) -> float:
    """The |t| that stays significant at `level` when so many comparisons were made (Bonferroni)."""
    return critical(freedom, level / max(1, comparisons))

"""Prompts redrawn with replacement: tokens and responses of one prompt are not independent, prompts are.

Means of paired differences, with Student's interval.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.stats import critical

INTERVAL = (0.025, 0.975)


class Bounded(NamedTuple):
    """An estimate with its 95 % percentile interval over prompts; NaN where it cannot be told."""

    value: float
    low: float
    high: float


def redrawn(prompts: int, *, draws: int, seed: int) -> Float[Tensor, "draw grp"]:
    """How often each prompt is in each of `draws` resamples. The first row is the sample itself."""
    picked = torch.randint(prompts, (draws, prompts), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(draws, prompts, dtype=torch.float64).scatter_add_(1, picked, torch.ones(picked.shape, dtype=torch.float64))
    return torch.cat([torch.ones(1, prompts, dtype=torch.float64), times])


def bounded(values: Float[Tensor, " draw"]) -> Bounded:
    """The first value is that of the sample itself, the others those of its resamples; NaN ones are left out."""
    if len(values) < 2 or bool(values[1:].isnan().all()):
        return Bounded(float(values[0]), float("nan"), float("nan"))
    low, high = values[1:].nanquantile(torch.tensor(INTERVAL, dtype=values.dtype)).tolist()
    return Bounded(float(values[0]), low, high)


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

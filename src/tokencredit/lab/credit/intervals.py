"""Prompts redrawn with replacement: tokens and responses of one prompt are not independent, prompts are."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

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

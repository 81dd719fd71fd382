"""Whitening over the batch: mean 0 and variance 1 over all tokens, each carrying its response's value."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.masked import group_statistics


def whitened(value: Float[Tensor, " seq"], times: Int[Tensor, " seq"], *, epsilon: float = 1e-8) -> Float[Tensor, " seq"]:
    """(x_i - m) / sqrt(v + epsilon), m and v (n - 1) over the batch with x_i standing `times_i` times.

    Outside the statistics and 0: a NaN value, and one that stands nowhere. A batch without spread gives 0.
    """
    _, mean, std = group_statistics(value, torch.zeros_like(times), times)
    counted = (times > 0) & ~value.isnan() & (std > 0)
    # sqrt(v + epsilon) by way of the standard deviation, whose square a small reward would lose in float32.
    spread = std.hypot(std.new_tensor(math.sqrt(epsilon)))
    return torch.where(counted, (value - mean) / spread, torch.zeros_like(value))

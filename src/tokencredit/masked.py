"""The only reductions: over masked tokens, and over groups of responses."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def masked_sum(value: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Sum where the mask holds. Values outside may be anything, NaN included."""
    return torch.where(mask, value, torch.zeros((), dtype=value.dtype, device=value.device)).sum()


def masked_mean(value: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Mean where the mask holds; 0 for an empty mask."""
    return masked_sum(value, mask) / mask.sum().clamp(min=1)


class GroupStatistics(NamedTuple):
    """Per response: the statistics of the group it belongs to, over graded responses."""

    graded: Float[Tensor, " seq"]
    mean: Float[Tensor, " seq"]
    std: Float[Tensor, " seq"]


def group_statistics(value: Float[Tensor, " seq"], group: Int[Tensor, " seq"]) -> GroupStatistics:
    """Count, mean and sample standard deviation (n-1, two-pass, in float64) of each group, NaN values left out.

    A group with no value has mean 0; one with fewer than two values has standard deviation 0, and so has one whose
    values differ by no more than the rounding of their own precision.
    """
    index = torch.unique(group, return_inverse=True)[1]
    known = ~value.isnan()
    exact = torch.where(known, value, torch.zeros_like(value)).double()

    def over_group(row_value: Tensor) -> Tensor:
        return torch.zeros_like(exact).index_add_(0, index, row_value)[index]

    count = over_group(known.double())
    mean = over_group(exact) / count.clamp(min=1)
    deviation = torch.where(known, exact - mean, torch.zeros_like(exact))
    std = (over_group(deviation.square()) / (count - 1).clamp(min=1)).sqrt()
    size = over_group(exact.abs()) / count.clamp(min=1)
    rounding = 4 * torch.finfo(value.dtype).eps * size
    std = torch.where(std > rounding, std, torch.zeros_like(std))
    return GroupStatistics(count.to(value.dtype), mean.to(value.dtype), std.to(value.dtype))

"""Reductions over masked tokens and over groups of responses; the mathematics uses no others."""

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


def response_mean(value: Float[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"]) -> Float[Tensor, "seq 1"]:
    """Mean over each response's masked tokens; 0 for a response without any."""
    return value.where(mask, 0.0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


class GroupStatistics(NamedTuple):
    """For each response, the statistics of its group over graded responses."""

    graded: Float[Tensor, " seq"]
    mean: Float[Tensor, " seq"]
    std: Float[Tensor, " seq"]


def group_statistics(value: Float[Tensor, " seq"], group: Int[Tensor, " seq"], times: Int[Tensor, " seq"] | None = None) -> GroupStatistics:
    """Count, mean and sample standard deviation (n-1, two-pass, in float64) of each group, NaN values left out.

    With `times` each value counts that many times, as a reward does that every token of its response carries. A group without values
    has mean 0; one with fewer than two values, or whose values differ by no more than rounding error, has standard deviation 0.
    """
    index = torch.unique(group, return_inverse=True)[1]
    known = ~value.isnan()
    exact = torch.where(known, value, torch.zeros_like(value)).double()
    weight = known.double() if times is None else known * times.double()

    def over_group(row_value: Tensor) -> Tensor:
        return torch.zeros_like(exact).index_add_(0, index, row_value)[index]

    count = over_group(weight)
    mean = over_group(weight * exact) / count.clamp(min=1)
    std = (over_group(weight * (exact - mean).square()) / (count - 1).clamp(min=1)).sqrt()
    size = over_group(weight * exact.abs()) / count.clamp(min=1)
    rounding = 4 * torch.finfo(value.dtype).eps * size
    std = torch.where(std > rounding, std, torch.zeros_like(std))
    return GroupStatistics(count.to(value.dtype), mean.to(value.dtype), std.to(value.dtype))


def best_sibling(value: Float[Tensor, " seq"], group: Int[Tensor, " seq"]) -> Float[Tensor, " seq"]:
    """The largest value among a response's siblings, excluding itself and NaN values; -inf without any."""
    index = torch.unique(group, return_inverse=True)[1]
    nothing = torch.full_like(value, -torch.inf)
    known = torch.where(value.isnan(), nothing, value)

    def over_group(row_value: Tensor) -> Tensor:
        return nothing.scatter_reduce(0, index, row_value, "amax")[index]

    best = over_group(known)
    leads = value == best
    leaders = torch.zeros_like(index).index_add_(0, index, leads.to(index.dtype))[index]
    return torch.where(leads & (leaders == 1), over_group(torch.where(leads, nothing, known)), best)

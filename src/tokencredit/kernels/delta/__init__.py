"""What DelTA asks of stored token features, each in one sweep over them: weighted sums, and products with directions.

Features [row, hid] stay as they were stored (bf16, fp16 or float32). Tokens are named by `place` [tile, slot]: the row of
each, -1 where a slot is empty. A tile belongs to one scope, and the tiles of a scope lie together, scope after scope, the
empty ones last. Rows that no slot names, or that weigh nothing, are never read. The Triton kernels multiply and add in
float32, the plain twins in float64; sums of tiles are float64 in both. Nothing is atomic: equal inputs give equal bits.
`rows` and `scores` (`fused_scoring`) are all of DelTA's other steps around such sweeps, for as few launches as can be.

Where the Triton kernels serve: on CUDA, if Triton is there, for features of at most float32.
"""

from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.kernels import triton_unavailable_reason
from tokencredit.kernels.delta import reference


@cache
def _kernels() -> ModuleType | None:
    if triton_unavailable_reason() is not None:
        return None
    from tokencredit.kernels.delta import triton_sweeps

    return triton_sweeps


def fused(tensor: Tensor, *, doubles: bool = False) -> ModuleType | None:
    """The module with the kernels, or None where the plain twin must do; `doubles` says that float64 is served too."""
    return _kernels() if tensor.is_cuda and (doubles or tensor.dtype != torch.float64) else None


@cache
def _scoring() -> tuple[ModuleType, ModuleType]:
    from tokencredit.kernels.delta import triton_layout, triton_scores

    return triton_layout, triton_scores


def fused_scoring(tensor: Tensor) -> tuple[ModuleType, ModuleType] | None:
    """The modules `rows` and `scores`, where they serve."""
    return _scoring() if fused(tensor) is not None else None


__all__ = ["fused_scoring", "project", "scope_sums", "squared_norms", "weighted_sums"]


def weighted_sums(
    features: Float[Tensor, "row hid"],
    place: Int[Tensor, "tile slot"],
    weight: Float[Tensor, "tile slot"],
    first: Int[Tensor, " bound"],
) -> Float[Tensor, "scope hid"]:
    """sum_t w_t h_t over each scope, whose tiles are first[s] ... first[s + 1]; in float64."""
    return scope_sums((fused(features) or reference).tile_sums(features, place, weight), first)


def project(
    features: Float[Tensor, "row hid"],
    place: Int[Tensor, "tile slot"],
    scope: Int[Tensor, " tile"],
    direction: Float[Tensor, "scope hid"],
) -> Float[Tensor, "tile slot"]:
    """<h_t, direction of the token's scope>; 0 in empty slots."""
    return (fused(features) or reference).project(features, place, scope, direction)


def squared_norms(features: Float[Tensor, "row hid"], place: Int[Tensor, "tile slot"]) -> Float[Tensor, "tile slot"]:
    return (fused(features) or reference).squared_norms(features, place)


def scope_sums(values: Float[Tensor, "tile column"], first: Int[Tensor, " bound"]) -> Float[Tensor, "scope column"]:
    """Sum over the tiles first[s] ... first[s + 1] of each scope, in float64 and always in one order."""
    return (fused(values, doubles=True) or reference).scope_sums(values, first)

"""Sweeps over stored token features for DelTA: weighted sums, and dot products with directions, each in one pass over the features.

Features [row, hid] stay as stored (bf16, fp16 or float32). `feature_row` [tile, slot] names the row of each token, -1 in an empty
slot. A tile belongs to one scope; the tiles of a scope are contiguous, and empty tiles come last. Rows that no slot names, or whose
weight is 0, are never read. The Triton kernels (on CUDA, up to float32) multiply and add in float32, the reference in float64; sums
of tiles are float64 in both. No atomics: equal inputs give equal bits.
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
    """The module of Triton kernels, or None where the reference must run; with `doubles` the kernels accept float64."""
    return _kernels() if tensor.is_cuda and (doubles or tensor.dtype != torch.float64) else None


@cache
def _scoring() -> tuple[ModuleType, ModuleType]:
    from tokencredit.kernels.delta import triton_layout, triton_scores

    return triton_layout, triton_scores


def fused_scoring(tensor: Tensor) -> tuple[ModuleType, ModuleType] | None:
    """The modules `triton_layout` and `triton_scores`, which run DelTA's other steps in few launches; None where Triton cannot run."""
    return _scoring() if fused(tensor) is not None else None


__all__ = ["fused_scoring", "project", "scope_sums", "squared_norms", "weighted_sums"]


def weighted_sums(
    features: Float[Tensor, "row hid"],
    feature_row: Int[Tensor, "tile slot"],
    weight: Float[Tensor, "tile slot"],
    first: Int[Tensor, " bound"],
) -> Float[Tensor, "scope hid"]:
    """sum_t w_t h_t over each scope, whose tiles are first[s] to first[s + 1]; in float64."""
    return scope_sums((fused(features) or reference).tile_sums(features, feature_row, weight), first)


def project(
    features: Float[Tensor, "row hid"],
    feature_row: Int[Tensor, "tile slot"],
    scope: Int[Tensor, " tile"],
    direction: Float[Tensor, "scope hid"],
) -> Float[Tensor, "tile slot"]:
    """<h_t, direction of the token's scope>; 0 in empty slots."""
    return (fused(features) or reference).project(features, feature_row, scope, direction)


def squared_norms(features: Float[Tensor, "row hid"], feature_row: Int[Tensor, "tile slot"]) -> Float[Tensor, "tile slot"]:
    return (fused(features) or reference).squared_norms(features, feature_row)


def scope_sums(values: Float[Tensor, "tile column"], first: Int[Tensor, " bound"]) -> Float[Tensor, "scope column"]:
    """Sum over the tiles first[s] to first[s + 1] of each scope, in float64 and in a fixed order."""
    return (fused(values, doubles=True) or reference).scope_sums(values, first)

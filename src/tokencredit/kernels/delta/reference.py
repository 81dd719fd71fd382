"""The sweeps in plain torch and float64, one block of tiles at a time: the twin of the Triton kernels, and the fallback without Triton."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK_ELEMENTS = 1 << 22
"""Elements of a block's float64 copy of features: 32 MiB."""


def _blocks(features: Tensor, feature_row: Tensor) -> Iterator[tuple[slice, Float[Tensor, "tile slot hid"]]]:
    size = max(1, BLOCK_ELEMENTS // (feature_row.shape[1] * max(1, features.shape[1])))
    for start in range(0, len(feature_row), size):
        run = slice(start, start + size)
        rows = feature_row[run].long()
        # Row 0, which an empty slot reads, may hold NaN.
        yield run, features[rows.clamp(min=0)].double().masked_fill((rows < 0)[..., None], 0.0)


def tile_sums(features: Tensor, feature_row: Tensor, weight: Tensor) -> Float[Tensor, "tile hid"]:
    parts = [torch.einsum("ts,tsh->th", weight[run].double(), block) for run, block in _blocks(features, feature_row)]
    return _joined(parts, (0, features.shape[1]), features)


def project(features: Tensor, feature_row: Tensor, scope: Tensor, direction: Tensor) -> Float[Tensor, "tile slot"]:
    parts = [torch.einsum("th,tsh->ts", direction[scope[run]].double(), block) for run, block in _blocks(features, feature_row)]
    return _joined(parts, (0, feature_row.shape[1]), features)


def squared_norms(features: Tensor, feature_row: Tensor) -> Float[Tensor, "tile slot"]:
    return _joined([block.square().sum(-1) for _, block in _blocks(features, feature_row)], (0, feature_row.shape[1]), features)


def scope_sums(values: Float[Tensor, "tile column"], first: Int[Tensor, " bound"]) -> Float[Tensor, "scope column"]:
    scope = torch.searchsorted(first[1:].contiguous(), torch.arange(len(values), device=values.device), right=True)
    # Empty tiles after the last scope are summed into an extra row.
    sums = torch.zeros(len(first), values.shape[1], dtype=torch.float64, device=values.device)
    return sums.index_add_(0, scope, values.double())[:-1]


def _joined(parts: list[Tensor], nothing: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(nothing, dtype=torch.float64, device=like.device)

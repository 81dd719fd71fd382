"""The sweeps in plain torch and float64, a block of tiles at a time: the twin of the Triton kernels, and the way without them."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK_ELEMENTS = 1 << 22
"""Of the float64 copy of features that is worked on at once: 32 MiB."""


def _blocks(features: Tensor, place: Tensor) -> Iterator[tuple[slice, Float[Tensor, "tile slot hid"]]]:
    size = max(1, BLOCK_ELEMENTS // (place.shape[1] * max(1, features.shape[1])))
    for start in range(0, len(place), size):
        run = slice(start, start + size)
        rows = place[run].long()
        # What an empty slot points at may be anything, NaN included.
        yield run, features[rows.clamp(min=0)].double().masked_fill((rows < 0)[..., None], 0.0)


def tile_sums(features: Tensor, place: Tensor, weight: Tensor) -> Float[Tensor, "tile hid"]:
    parts = [torch.einsum("ts,tsh->th", weight[run].double(), block) for run, block in _blocks(features, place)]
    return _joined(parts, (0, features.shape[1]), features)


def project(features: Tensor, place: Tensor, scope: Tensor, direction: Tensor) -> Float[Tensor, "tile slot"]:
    parts = [torch.einsum("th,tsh->ts", direction[scope[run]].double(), block) for run, block in _blocks(features, place)]
    return _joined(parts, (0, place.shape[1]), features)


def squared_norms(features: Tensor, place: Tensor) -> Float[Tensor, "tile slot"]:
    return _joined([block.square().sum(-1) for _, block in _blocks(features, place)], (0, place.shape[1]), features)


def scope_sums(values: Float[Tensor, "tile column"], first: Int[Tensor, " bound"]) -> Float[Tensor, "scope column"]:
    own = torch.searchsorted(first[1:].contiguous(), torch.arange(len(values), device=values.device), right=True)
    # Tiles past the last scope's are empty, and fall into a row of their own.
    sums = torch.zeros(len(first), values.shape[1], dtype=torch.float64, device=values.device)
    return sums.index_add_(0, own, values.double())[:-1]


def _joined(parts: list[Tensor], nothing: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(nothing, dtype=torch.float64, device=like.device)

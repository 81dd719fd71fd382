"""How large a piece of [tok, vocab] one Triton program works on, by what the GPU holds."""

from functools import cache
from typing import NamedTuple

import torch


class Tile(NamedTuple):
    tokens: int
    vocab: int
    width: int
    warps: int
    stages: int
    descriptors: bool = False
    """Loads by the copy engine of Hopper and later; rows must then be whole multiples of 16 bytes."""
    flatten: bool = False
    """Loads for the next tile start while this one is summed."""
    described_out: bool = False
    """Stores by the copy engine too: fewer registers, more shared memory."""


class Tiles(NamedTuple):
    sweep: Tile
    projection: Tile
    error: Tile


SMALL = Tile(64, 64, 32, 4, 2)
AMPERE = Tile(128, 128, 32, 8, 3)
HOPPER = Tiles(
    sweep=Tile(128, 256, 64, 8, 4, True, True),
    projection=Tile(128, 128, 64, 8, 3, True),
    error=Tile(128, 128, 64, 4, 2, True, True, described_out=True),
)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def tiles_for(device: torch.device, dtype: torch.dtype) -> Tiles:
    if device.type != "cuda" or dtype == torch.float32:
        return Tiles(SMALL, SMALL, SMALL)
    if torch.version.hip is None and _capability(device) >= (9, 0):
        return HOPPER
    return Tiles(AMPERE, AMPERE._replace(stages=2), AMPERE)

"""How the products of a decode step are cut, as measured on an H200.

What decides is how many results a product has, slots x columns. Few: what takes time is reading weights, and small tiles let every
processor read. Many: what takes time is multiplying, and large tiles read less often.
Tensor cores sum a product in steps of 16 along its inner dimension, by one instruction for tiles of 64 slots and more. No tile has
fewer slots, and warps share a tile by its slots alone, so sums are taken in one order whoever is beside a row.
"""

from functools import cache
from typing import Any, NamedTuple

import torch

from tokencredit.kernels.decode.state import VOCABULARY_BLOCK


class Tile(NamedTuple):
    """Slots, columns and inner columns of a tile, warps on it, tiles loaded ahead."""

    slots: int
    columns: int
    inner: int
    warps: int
    stages: int

    def within(self, memory: int, element_bytes: int, matrices: int) -> "Tile":
        """With fewer tiles ahead where a processor's memory does not hold so many."""
        stage = (self.slots + matrices * self.columns) * self.inner * element_bytes
        return self._replace(stages=max(1, min(self.stages, memory // stage)))

    def options(self) -> dict[str, Any]:
        sizes = {"BLOCK_M": self.slots, "BLOCK_N": self.columns, "BLOCK_K": self.inner}
        return sizes | {"num_warps": self.warps, "num_stages": self.stages}


LEAST_SLOTS = 64
FLOAT32 = Tile(32, 32, 32, 4, 3)
"""For comparing."""
TILES: dict[str, tuple[tuple[int, Tile], ...]] = {
    "qkv": ((0, Tile(64, 32, 64, 4, 5)), (600_000, Tile(128, 128, 64, 8, 3))),
    "gate_up": ((0, Tile(64, 32, 64, 4, 4)), (600_000, Tile(128, 64, 64, 8, 3))),
    "add": ((0, Tile(64, 32, 64, 4, 4)), (400_000, Tile(128, 64, 64, 8, 4))),
    "add_long": ((0, Tile(64, 32, 128, 4, 4)), (400_000, Tile(128, 64, 128, 8, 3))),
    "head": ((0, Tile(128, VOCABULARY_BLOCK, 64, 8, 3)),),
}
"""Of each product, from how many results on which tile; "add_long" sums over so many columns that wide steps pay."""
LONG = 1024
HOPPER_MEMORY = 232_448
SMALLEST_MEMORY = 65_536


@cache
def shared_memory(device: torch.device) -> int:
    """Of one processor, for one program; outside a GPU it does not matter."""
    if device.type != "cuda":
        return HOPPER_MEMORY
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SMALLEST_MEMORY)


def tile_for(product: str, slots: int, columns: int, compute: torch.dtype) -> Tile:
    if compute == torch.float32:
        return FLOAT32._replace(columns=VOCABULARY_BLOCK) if product == "head" else FLOAT32
    results = max(slots, LEAST_SLOTS) * columns
    return [tile for least, tile in TILES[product] if results >= least][-1]


def tile_for_sum(slots: int, columns: int, inner: int, compute: torch.dtype) -> Tile:
    """For `linear_add`."""
    return tile_for("add_long" if inner >= LONG and inner % 128 == 0 else "add", slots, columns, compute)

"""The functions of a decode step in Triton: those of `reference`, launched on the current stream without a device-host sync.

Tiles of the products were measured on an H200; the number of results, slots x columns, selects one. With few results reading the
weights dominates, and small tiles let every processor read; with many the multiplications dominate, and large tiles read less often.
Tensor cores sum a product in steps of 16 along its inner dimension, with one instruction for tiles of 64 slots and more. No tile has
fewer slots, and warps split a tile by slots only, so the order of a row's sums does not depend on the other rows.
"""

from collections.abc import Sequence
from functools import cache
from math import gcd
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from tokencredit.kernels.decode.state import (
    VOCABULARY_BLOCK,
    HeadNorm,
    Keys,
    Knobs,
    Rotary,
    Slots,
    Statistics,
    Written,
    blocks,
    square_tile,
)
from tokencredit.kernels.decode.triton_kernels import (
    attend_kernel,
    draw_kernel,
    final_norm_kernel,
    head_kernel,
    linear_add_kernel,
    norm_gate_up_kernel,
    norm_linear_kernel,
)


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


LOG2_E = 1.4426950408889634
SMALLEST_GROUP = 16
"""Rows of the smallest tile that the tensor cores multiply; query heads of a key-value head are filled up to it."""


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"


def _product(given: Tensor, tile: Tile, matrices: int = 1) -> dict[str, Any]:
    inner, fitting = given.shape[1], tile.within(shared_memory(given.device), given.element_size(), matrices)
    return {"INNER": inner, "EVEN": inner % tile.inner == 0, "PRECISION": _precision(given.dtype), **fitting.options()}


def _levels(squares: Tensor) -> int:
    """How often the sums of squares are added in pairs."""
    return (squares.shape[1] - 1).bit_length()


def _launch(kernel: Any, programs: tuple[int, ...], *given: Any, **sizes: Any) -> None:
    kernel[programs](*given, **sizes)


def norm_linear(
    weighted: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    weights: Sequence[Float[Tensor, "_ hid"]],
    biases: Sequence[Float[Tensor, " _"]] | None,
    out: Float[Tensor, "slot all"],
    *,
    eps: float,
    tile: Tile | None = None,
) -> None:
    """`out` = norm(x) Wᵀ + b for a query, a key and a value matrix, side by side."""
    q, k, v = weights
    slots = len(weighted)
    tile = tile or tile_for("qkv", slots, out.shape[1], out.dtype)
    tile = tile._replace(columns=gcd(tile.columns, len(q), len(k)))
    _launch(
        norm_linear_kernel, (blocks(slots, tile.slots), out.shape[1] // tile.columns),
        weighted, squares, q, k, v, *(biases or (None, None, None)), out,
        slots, squares.shape[1], len(q), len(k), eps,
        HAS_BIAS=biases is not None, LEVELS=_levels(squares), **_product(weighted, tile),
    )  # fmt: skip


def linear_add(
    given: Float[Tensor, "slot in"],
    weight: Float[Tensor, "hid in"],
    x: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    norm: Float[Tensor, " hid"],
    weighted: Float[Tensor, "slot hid"],
    *,
    tile: Tile | None = None,
) -> None:
    """`x` += given Wᵀ, the squares of the new x, and the new x times the weight of the norm that reads it."""
    (slots, hidden), square = x.shape, square_tile(x.shape[1])
    tile = tile or tile_for_sum(slots, hidden, given.shape[1], given.dtype)
    tile = tile._replace(columns=max(tile.columns, square))
    _launch(
        linear_add_kernel, (blocks(slots, tile.slots), blocks(hidden, tile.columns)),
        given, weight, x, squares, norm, weighted, slots, hidden, squares.shape[1], TILE=square, **_product(given, tile),
    )  # fmt: skip


def norm_gate_up(
    weighted: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    gate: Float[Tensor, "ffn hid"],
    up: Float[Tensor, "ffn hid"],
    out: Float[Tensor, "slot ffn"],
    *,
    eps: float,
    tile: Tile | None = None,
) -> None:
    """`out` = silu(norm(x) Gᵀ) · norm(x) Uᵀ."""
    slots = len(weighted)
    tile = tile or tile_for("gate_up", slots, out.shape[1], out.dtype)
    _launch(
        norm_gate_up_kernel, (blocks(slots, tile.slots), blocks(out.shape[1], tile.columns)),
        weighted, squares, gate, up, out, slots, squares.shape[1], out.shape[1], eps,
        LEVELS=_levels(squares), **_product(weighted, tile, 2),
    )  # fmt: skip


def final_norm(
    x: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    norm: Float[Tensor, " hid"],
    out: Float[Tensor, "slot hid"],
    kept: Float[Tensor, "seq tok hid"] | None,
    slots: Slots,
    written: Written,
    *,
    eps: float,
) -> None:
    """Input of the LM head; with storage, also stored by row and position."""
    tiles = squares.shape[1]
    _launch(
        final_norm_kernel, (len(x),),
        x, squares, norm, out, kept, slots.row, slots.position, written.ended, x.shape[1], tiles, written.tokens.shape[1], eps,
        KEEPS=kept is not None, TILES=triton.next_power_of_2(tiles), HIDDEN=triton.next_power_of_2(x.shape[1]),
    )  # fmt: skip


def attend(
    qkv: Float[Tensor, "slot all"],
    norms: HeadNorm | None,
    rotary: Rotary,
    keys: Keys,
    slots: Slots,
    written: Written,
    out: Float[Tensor, "slot q"],
    *,
    eps: float,
    scale: float,
    block: int = 32,
    warps: int = 0,
    stages: int = 0,
) -> None:
    """Attention of each slot's new token over its prompt and its own response; its key and value are put into the cache.

    Slots of rows that have ended are left alone.
    """
    _, kv_heads, own_room, head_dim = keys.own_k.shape
    group = out.shape[1] // (kv_heads * head_dim)
    # Keys and values of all stages lie in a processor's memory at once.
    width = head_dim * qkv.element_size()
    warps, stages = warps or (1 if width <= 128 else 4), stages or (3 if width <= 256 else 2)
    _launch(
        attend_kernel, (len(qkv), kv_heads),
        qkv, norms.q if norms else None, norms.k if norms else None, rotary.cos, rotary.sin,
        keys.prompt_k, keys.prompt_v, keys.own_k, keys.own_v, keys.prompt_length,
        slots.row, slots.prompt, slots.position, written.ended, out,
        kv_heads, keys.prompt_k.shape[2], own_room, eps, scale * LOG2_E,
        HAS_NORM=norms is not None, GROUP=group, GROUP_BLOCK=max(SMALLEST_GROUP, triton.next_power_of_2(group)), HALF=head_dim // 2,
        BLOCK=block, PRECISION=_precision(qkv.dtype), num_warps=warps, num_stages=stages,
    )  # fmt: skip


def head(
    given: Float[Tensor, "slot hid"],
    weight: Float[Tensor, "vocab hid"],
    temperature: Float[Tensor, " one"],
    logits: Float[Tensor, "slot vocab"],
    statistics: Statistics,
    *,
    tile: Tile | None = None,
) -> None:
    """`logits` = given Wᵀ / temperature in full precision, summed up by blocks of the vocabulary."""
    tile = tile or tile_for("head", len(given), len(weight), given.dtype)
    count = statistics.top.shape[1]
    _launch(
        head_kernel, (blocks(len(given), tile.slots), count),
        given, weight, temperature, logits, *statistics, len(given), len(weight), count, **_product(given, tile),
    )  # fmt: skip


def draw(
    logits: Float[Tensor, "slot vocab"],
    statistics: Statistics,
    knobs: Knobs,
    slots: Slots,
    written: Written,
    embeddings: Float[Tensor, "vocab hid"],
    x: Float[Tensor, "slot hid"],
    squares: Float[Tensor, "slot tile"],
    norm: Float[Tensor, " hid"],
    weighted: Float[Tensor, "slot hid"],
) -> None:
    """One token for each slot whose row has not ended, with its log-prob and the entropy; its embedding is the next input.

    A block of the vocabulary is chosen by its probability, then a token of the block: the first whose cumulative sum is above a
    uniform number. Greedy takes the likeliest token, the first of equal ones. Where nothing is above (rounding) it is the likeliest.
    """
    count, hidden, tiles = statistics.top.shape[1], x.shape[1], squares.shape[1]
    tile = square_tile(hidden)
    padded = max(triton.next_power_of_2(hidden), tile)
    _launch(
        draw_kernel, (len(x),),
        logits, *statistics, *knobs, *slots, *written, embeddings, x, squares, norm, weighted,
        logits.shape[1], count, written.tokens.shape[1], hidden, tiles,
        COUNT=triton.next_power_of_2(count), BLOCK=VOCABULARY_BLOCK, ENDS=len(knobs.ends), HIDDEN=padded, TILES=padded // tile, TILE=tile,
        num_warps=4,
    )  # fmt: skip

"""The sweeps in Triton. Each reads every needed row of features once, so memory bandwidth bounds them.

A program of `tile_sums` has one tile and a block of columns, and one running sum per token lane, so chains of float32 additions are
short. A program of `project` has some tokens and loops over the width. No atomics.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

LANES, COLUMNS, WARPS = 128, 64, 4
"""Tokens x columns of features that a program of `tile_sums` holds at once."""
DOT_LANES, DOT_COLUMNS, DOT_WARPS = 32, 128, 4
"""The same for `project`."""
SUM_ROWS, SUM_COLUMNS, SPLITS = 16, 128, 32
"""Tiles x columns of a program of `scope_sums`, and the number of partial sums of a scope with very many tiles."""


@triton.jit
def _tile_sums(
    features, feature_row, weight, out, stride,
    WIDTH: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    tile = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    total = tl.zeros([LANES, COLUMNS], tl.float32)
    for start in range(0, TILE, LANES):
        slots = tile * TILE + start + tl.arange(0, LANES)
        rows = tl.load(feature_row + slots).to(tl.int64)
        token_weight = tl.load(weight + slots)
        wanted = (rows >= 0) & (token_weight != 0)
        at = features + rows[:, None] * stride + columns[None, :]
        block = tl.load(at, mask=wanted[:, None] & inside[None, :], other=0.0).to(tl.float32)
        total += token_weight[:, None] * block
    tl.store(out + tile * WIDTH + columns, tl.sum(total, 0), mask=inside)


@triton.jit
def _project(
    features, feature_row, scope, direction, out, stride,
    WIDTH: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, SQUARE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    slots = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    rows = tl.load(feature_row + slots).to(tl.int64)
    wanted = rows >= 0
    scope_direction = direction
    if not SQUARE:
        scope_direction = direction + tl.load(scope + tl.program_id(0) // (TILE // LANES)).to(tl.int64) * WIDTH
    total = tl.zeros([LANES, COLUMNS], tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < WIDTH
        at = features + rows[:, None] * stride + columns[None, :]
        block = tl.load(at, mask=wanted[:, None] & inside[None, :], other=0.0).to(tl.float32)
        if SQUARE:
            total += block * block
        else:
            total += block * tl.load(scope_direction + columns, mask=inside, other=0.0)[None, :]
    tl.store(out + slots, tl.sum(total, 1))


@triton.jit
def _scope_sums(values, first, out, width, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: N803
    blocks = tl.cdiv(width, COLUMNS)
    part = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    begin = tl.load(first + part // SPLITS)
    end = tl.load(first + part // SPLITS + 1)
    length = (end - begin + SPLITS - 1) // SPLITS
    start = begin + (part % SPLITS) * length
    stop = tl.minimum(start + length, end)
    total = tl.zeros([ROWS, COLUMNS], tl.float64)
    while start < stop:
        rows = start + tl.arange(0, ROWS)
        at = values + rows[:, None] * width + columns[None, :]
        total += tl.load(at, mask=(rows < stop)[:, None] & inside[None, :], other=0.0).to(tl.float64)
        start += ROWS
    tl.store(out + part * width + columns, tl.sum(total, 0), mask=inside)


def tile_sums(
    features: Float[Tensor, "row hid"], feature_row: Int[Tensor, "tile slot"], weight: Float[Tensor, "tile slot"]
) -> Float[Tensor, "tile hid"]:
    tiles, slots = feature_row.shape
    width = features.shape[1]
    out = torch.empty(tiles, width, dtype=torch.float32, device=features.device)
    lanes = min(LANES, slots)
    numbers = (features.stride(0), width, slots, lanes, COLUMNS)
    _launch(_tile_sums, tiles * _blocks(width, COLUMNS), _rows(features), feature_row, weight.float(), out, *numbers, warps=WARPS)
    return out


def project(
    features: Float[Tensor, "row hid"],
    feature_row: Int[Tensor, "tile slot"],
    scope: Int[Tensor, " tile"],
    direction: Float[Tensor, "scope hid"],
) -> Float[Tensor, "tile slot"]:
    return _products(features, feature_row, scope, direction.float().contiguous(), square=False)


def squared_norms(features: Float[Tensor, "row hid"], feature_row: Int[Tensor, "tile slot"]) -> Float[Tensor, "tile slot"]:
    return _products(features, feature_row, feature_row, features, square=True)


def _products(features: Tensor, feature_row: Tensor, scope: Tensor, direction: Tensor, *, square: bool) -> Float[Tensor, "tile slot"]:
    tiles, slots = feature_row.shape
    lanes = min(DOT_LANES, slots)
    out = torch.empty(tiles, slots, dtype=torch.float32, device=features.device)
    numbers = (features.stride(0), features.shape[1], slots, lanes, DOT_COLUMNS, square)
    _launch(_project, tiles * slots // lanes, _rows(features), feature_row, scope, direction, out, *numbers, warps=DOT_WARPS)
    return out


def scope_sums(values: Float[Tensor, "tile column"], first: Int[Tensor, " bound"]) -> Float[Tensor, "scope column"]:
    scopes, width = len(first) - 1, values.shape[1]
    # Many scopes already give enough programs, each with few tiles.
    splits = SPLITS if scopes <= 2 * SPLITS else 1
    out = torch.empty(scopes, splits, width, dtype=torch.float64, device=values.device)
    programs = scopes * splits * _blocks(width, SUM_COLUMNS)
    _launch(_scope_sums, programs, values.contiguous(), first.contiguous(), out, width, splits, SUM_ROWS, SUM_COLUMNS, warps=4)
    return out.sum(1)


def _blocks(width: int, columns: int) -> int:
    return -(-width // columns)


def _launch(kernel: Any, programs: int, *arguments: Any, warps: int) -> None:
    if programs:
        kernel[(programs,)](*arguments, num_warps=warps)


def _rows(features: Tensor) -> Tensor:
    if features.stride(1) != 1:
        raise ValueError(f"features have strides {features.stride()}; the elements of a row must be contiguous")
    return features

"""DelTA's token layout in five Triton launches: scopes, sides and slots from mask, advantage and scope ids.

The plain twin is `credit.delta.layout`. Nothing is sorted: responses are few, so a program compares each with all others. The tiles
of a side are contiguous, side after side, and hold its tokens row by row; kernels recompute a side's first tile with `tiles_before`.
With several chunks of features, each chunk has `tiles` tiles.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

TILE = 128
MINE, OTHERS = 16, 256
"""Responses per program, and responses that it compares them with per iteration."""
COLUMNS = 1024


@triton.jit
def tiles_before(count, side, TILE: tl.constexpr, OTHERS: tl.constexpr):  # noqa: N803
    """Tiles of the sides before `side`."""
    found = tl.zeros([OTHERS], tl.int64)
    start = 0
    while start < side:
        index = start + tl.arange(0, OTHERS)
        tokens = tl.load(count + index, mask=index < side, other=0)
        found += (tokens + TILE - 1) // TILE
        start += OTHERS
    return tl.sum(found, 0)


@triton.jit(do_not_specialize=["width"])
def _lengths(mask, length, stride, width, COLUMNS: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([COLUMNS], tl.int64)
    start = 0
    while start < width:
        columns = start + tl.arange(0, COLUMNS)
        total += (tl.load(mask + row * stride + columns, mask=columns < width, other=0) != 0).to(tl.int64)
        start += COLUMNS
    tl.store(length + row, tl.sum(total, 0))


@triton.jit(do_not_specialize=["rows"])
def _pair(scope, advantage, length, before, leads, rows, MINE: tl.constexpr, OTHERS: tl.constexpr):  # noqa: N803
    """Write `before`, the tokens of all earlier rows, and `leads`: 1 for the first row of a two-sided scope, 2 for its others, else 0."""
    mine = tl.program_id(0) * MINE + tl.arange(0, MINE)
    my_scope = tl.load(scope + mine, mask=mine < rows, other=0)
    earlier = tl.zeros([MINE], tl.int64)
    positive = tl.zeros([MINE], tl.int32)
    negative = tl.zeros([MINE], tl.int32)
    preceding = tl.zeros([MINE], tl.int32)
    start = 0
    while start < rows:
        others = start + tl.arange(0, OTHERS)
        inside = others < rows
        same = (my_scope[:, None] == tl.load(scope + others, mask=inside, other=0)[None, :]) & inside[None, :]
        size = tl.load(advantage + others, mask=inside, other=0.0)
        tokens = tl.load(length + others, mask=inside, other=0)
        first = others[None, :] < mine[:, None]
        earlier += tl.sum(tl.where(first, tokens[None, :], 0), 1)
        positive += tl.sum((same & ((size > 0) & (tokens > 0))[None, :]).to(tl.int32), 1)
        negative += tl.sum((same & ((size < 0) & (tokens > 0))[None, :]).to(tl.int32), 1)
        preceding += tl.sum((same & first).to(tl.int32), 1)
        start += OTHERS
    two_sided = (positive > 0) & (negative > 0)
    tl.store(leads + mine, tl.where(two_sided, tl.where(preceding == 0, 1, 2), 0), mask=mine < rows)
    tl.store(before + mine, earlier, mask=mine < rows)
    last = mine == rows - 1
    tl.store(before + mine + 1, earlier + tl.load(length + mine, mask=last, other=0), mask=last)


@triton.jit(do_not_specialize=["rows", "max_scopes"])
def _number(scope, advantage, leads, of_row, key, rows, max_scopes, MINE: tl.constexpr, OTHERS: tl.constexpr):  # noqa: N803
    """Number the two-sided scopes in the order of their ids; `key` is a row's side, 2 s or 2 s + 1, or -1 for a row without scores."""
    mine = tl.program_id(0) * MINE + tl.arange(0, MINE)
    inside = mine < rows
    my_scope = tl.load(scope + mine, mask=inside, other=0)
    smaller = tl.zeros([MINE], tl.int32)
    start = 0
    while start < rows:
        others = start + tl.arange(0, OTHERS)
        theirs = tl.load(scope + others, mask=others < rows, other=0)
        leading = tl.load(leads + others, mask=others < rows, other=0) == 1
        smaller += tl.sum(((theirs[None, :] < my_scope[:, None]) & leading[None, :]).to(tl.int32), 1)
        start += OTHERS
    two_sided = tl.load(leads + mine, mask=inside, other=0) != 0
    size = tl.load(advantage + mine, mask=inside, other=0.0)
    tl.store(of_row + mine, tl.where(two_sided, smaller, max_scopes), mask=inside)
    tl.store(key + mine, tl.where(two_sided & (size != 0), 2 * smaller + (size < 0).to(tl.int32), -1), mask=inside)


@triton.jit
def _held(before, length, rows, inside, begin, end):
    """Number of tokens of these rows in a chunk of features."""
    start = tl.load(before + rows, mask=inside, other=0)
    stop = start + tl.load(length + rows, mask=inside, other=0)
    return tl.maximum(tl.minimum(stop, end) - tl.maximum(start, begin), 0)


@triton.jit(do_not_specialize=["rows", "sides", "begin", "end"])
def _count(
    of_row, key, before, length, advantage, count, mass, tokens, exists, rows, sides, begin, end,
    MINE: tl.constexpr, OTHERS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """For each side: its tokens in the chunk; over all chunks its sum of |A| and the tokens of its scope."""
    mine = tl.program_id(0) * MINE + tl.arange(0, MINE)
    held = tl.zeros([MINE], tl.int64)
    scope_tokens = tl.zeros([MINE], tl.int64)
    weight = tl.zeros([MINE], tl.float64)
    start = 0
    while start < rows:
        others = start + tl.arange(0, OTHERS)
        inside = others < rows
        on_side = mine[:, None] == tl.load(key + others, mask=inside, other=-1)[None, :]
        held += tl.sum(tl.where(on_side, _held(before, length, others, inside, begin, end)[None, :], 0), 1)
        all_tokens = tl.load(length + others, mask=inside, other=0)
        size = tl.abs(tl.load(advantage + others, mask=inside, other=0.0).to(tl.float64))
        weight += tl.sum(tl.where(on_side, (size * all_tokens.to(tl.float64))[None, :], 0.0), 1)
        same = (mine // 2)[:, None] == tl.load(of_row + others, mask=inside, other=-1)[None, :]
        scope_tokens += tl.sum(tl.where(same, all_tokens[None, :], 0), 1)
        start += OTHERS
    tl.store(count + mine, held, mask=mine < sides)
    tl.store(mass + mine, weight, mask=mine < sides)
    tl.store(tokens + mine // 2, scope_tokens.to(tl.float64), mask=(mine < sides) & (mine % 2 == 0))
    tl.store(exists + mine // 2, (scope_tokens > 0).to(tl.uint8), mask=(mine < sides) & (mine % 2 == 0))


@triton.jit(do_not_specialize=["width", "response_stride", "begin", "end", "first_tile"])
def _fill(
    mask, logp, advantage, key, before, length, count, feature_row, side, cell, size, scale,
    width, mask_stride, logp_stride, response_stride, begin, end, first_tile,
    TILE: tl.constexpr, OTHERS: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write a row's tokens into their slots; `response_stride` is the rows of features per row of the batch, 0 for packed features."""
    row = tl.program_id(0).to(tl.int64)
    my_side = tl.load(key + row)
    earlier = tl.zeros([OTHERS], tl.int64)
    bound = tl.where(my_side >= 0, row, 0)
    start = 0
    while start < bound:
        others = start + tl.arange(0, OTHERS)
        inside = others < row
        same = tl.load(key + others, mask=inside, other=-1) == my_side
        earlier += tl.where(same & inside, _held(before, length, others, inside, begin, end), 0)
        start += OTHERS
    packed = tl.load(before + row)
    slot = (first_tile + tiles_before(count, my_side, TILE, OTHERS)) * TILE + tl.sum(earlier, 0) - tl.maximum(packed, begin)
    magnitude = tl.abs(tl.load(advantage + row).to(tl.float64)).to(tl.float32)
    bound = tl.where(my_side >= 0, width, 0)
    start = 0
    while start < bound:
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < width
        valid = tl.load(mask + row * mask_stride + columns, mask=inside, other=0) != 0
        at = packed + tl.cumsum(valid.to(tl.int32), 0) - 1
        packed += tl.sum(valid.to(tl.int32), 0)
        wanted = valid & (at >= begin) & (at < end)
        where = slot + at
        tl.store(feature_row + where, tl.where(response_stride == 0, at - begin, row * response_stride + columns).to(tl.int32), mask=wanted)
        tl.store(cell + where, (row * width + columns).to(tl.int32), mask=wanted)
        tl.store(size + where, magnitude + tl.zeros([COLUMNS], tl.float32), mask=wanted)
        chance = tl.zeros([COLUMNS], tl.float64)
        if SCALED:
            chance = tl.exp(tl.load(logp + row * logp_stride + columns, mask=wanted, other=0.0).to(tl.float64))
        tl.store(scale + where, (1.0 - chance).to(tl.float32), mask=wanted)
        tl.store(side + where // TILE, my_side + tl.zeros([COLUMNS], tl.int32), mask=wanted & (where % TILE == 0))
        start += COLUMNS


class ResponseLayout(NamedTuple):
    """Scope and side of every response."""

    of_row: Int[Tensor, " seq"]
    """Number of each response's scope; the bound of scopes if that scope is one-sided."""
    key: Int[Tensor, " seq"]
    """Side of each response; -1 for one without scores."""
    length: Int[Tensor, " seq"]
    before: Int[Tensor, " bound"]
    """Tokens of all earlier responses; the last entry counts all tokens."""


class Slots(NamedTuple):
    """The layout, one number per slot; undefined in empty slots except `feature_row`."""

    feature_row: Int[Tensor, "tile slot"]
    """Row of the token's features; -1 in an empty slot."""
    side: Int[Tensor, " tile"]
    """-1 in an empty tile."""
    cell: Int[Tensor, "tile slot"]
    """Index of the token in the flattened [seq, tok]."""
    size: Float[Tensor, "tile slot"]
    """|A|"""
    scale: Float[Tensor, "tile slot"]
    """(1 - p), or 1."""
    held: Int[Tensor, "chunk side"]
    """Tokens of each side in each chunk."""
    mass: Float[Tensor, " side"]
    """Sum of |A|."""
    tokens: Float[Tensor, " scope"]
    """Tokens of the scope, those of zero advantage included."""
    exists: Bool[Tensor, " scope"]
    tiles: int
    """Tiles per chunk."""


def response_lengths(mask: Bool[Tensor, "seq tok"]) -> Int[Tensor, " seq"]:
    length = torch.empty(len(mask), dtype=torch.int64, device=mask.device)
    launch(_lengths, len(mask), mask.view(torch.uint8), length, mask.stride(0), mask.shape[1], COLUMNS)
    return length


def number_scopes(
    scope: Int[Tensor, " seq"], advantage: Float[Tensor, " seq"], mask: Bool[Tensor, "seq tok"], max_scopes: int
) -> ResponseLayout:
    rows, length = len(mask), response_lengths(mask)
    before = torch.empty(rows + 1, dtype=torch.int64, device=mask.device)
    leads, of_row, key = torch.empty(3, rows, dtype=torch.int32, device=mask.device).unbind()
    programs = -(-rows // MINE)
    launch(_pair, programs, scope, advantage, length, before, leads, rows, MINE, OTHERS)
    launch(_number, programs, scope, advantage, leads, of_row, key, rows, max_scopes, MINE, OTHERS)
    return ResponseLayout(of_row, key, length, before)


def fill_slots(
    rows: ResponseLayout,
    advantage: Float[Tensor, " seq"],
    mask: Bool[Tensor, "seq tok"],
    logp: Float[Tensor, "seq tok"],
    *,
    runs: list[slice],
    scopes: int,
    response_stride: int,
    scaled: bool,
    tile: int = TILE,
) -> Slots:
    """Lay out the tokens; `response_stride` as in `_fill`. Features that are not packed are one chunk with all tokens."""
    device, sides, number = mask.device, 2 * scopes, len(mask)
    longest = max(run.stop - run.start for run in runs) if response_stride == 0 else mask.numel()
    longest = min(longest, mask.numel())
    tiles = longest // tile + min(sides, longest)
    slots = len(runs) * tiles * tile
    buffer = torch.full((slots + len(runs) * tiles,), -1, dtype=torch.int32, device=device)
    feature_row, side = buffer[:slots].view(-1, tile), buffer[slots:]
    cell = torch.empty(slots, dtype=torch.int32, device=device)
    size, scale = torch.empty(2, slots, dtype=torch.float32, device=device).unbind()
    held = torch.empty(len(runs), sides, dtype=torch.int64, device=device)
    mass, tokens = torch.empty(sides, dtype=torch.float64, device=device), torch.empty(scopes, dtype=torch.float64, device=device)
    exists = torch.empty(scopes, dtype=torch.uint8, device=device)
    byte_mask, chunks = mask.view(torch.uint8), (held,) if len(runs) == 1 else held.unbind()
    for chunk, (run, count) in enumerate(zip(runs, chunks, strict=True)):
        begin, end = (run.start, run.stop) if response_stride == 0 else (0, mask.numel())
        known = rows.key, rows.before, rows.length
        launch(
            _count, -(-sides // MINE), rows.of_row, *known, advantage, count, mass, tokens, exists,
            number, sides, begin, end, MINE, OTHERS,
        )  # fmt: skip
        launch(
            _fill, number, byte_mask, logp, advantage, *known, count, feature_row, side, cell, size, scale,
            mask.shape[1], mask.stride(0), logp.stride(0), response_stride, begin, end, chunk * tiles,
            tile, OTHERS, COLUMNS, scaled,
        )  # fmt: skip
    return Slots(feature_row, side, cell, size, scale, held, mass, tokens, exists.view(torch.bool), tiles)


def launch(kernel: Any, programs: int, *arguments: Any, warps: int = 4) -> None:
    if programs:
        kernel[(programs,)](*arguments, num_warps=warps)

"""One round of DelTA in seven Triton launches for all scopes: weights, direction, margins, temperatures, the next weights.

Only `sums` and `dots` read features, bounded by memory bandwidth. Per-token numbers are float32, sums of them float64. No atomics, and
every sum has a fixed order: equal inputs give equal bits. The plain twin is `credit.delta.batched`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from tokencredit.kernels.delta.triton_layout import ResponseLayout, Slots, launch, tiles_before

COLUMNS, WARPS = 64, 4
"""Columns of a tile in a program of `sums`."""
DOT_LANES, DOT_COLUMNS, DOT_WARPS = 32, 128, 4
"""Tokens x columns that a program of `dots` holds."""
SUM_TILES, SUM_COLUMNS, SPLITS = 16, 128, 64
"""Tiles x columns of a program that adds up tiles, and the number of partial sums when scopes are few."""
AT_ONCE, MANY_WARPS = 1024, 8
"""Tiles that a program of one side reads per iteration."""
OTHERS = 256
FLOOR = tl.constexpr(1e-8)


@triton.jit
def _tile_sums(
    features, feature_row, weight, scale, out, stride, WIDTH: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr  # noqa: N803
):  # fmt: skip
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    tile = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    slots = tile * TILE + tl.arange(0, TILE)
    rows = tl.load(feature_row + slots).to(tl.int64)
    token_weight = tl.load(weight + slots, mask=rows >= 0, other=0.0) * tl.load(scale + slots, mask=rows >= 0, other=0.0)
    wanted = (rows >= 0) & (token_weight != 0)
    at = features + rows[:, None] * stride + columns[None, :]
    block = tl.load(at, mask=wanted[:, None] & inside[None, :], other=0.0).to(tl.float32)
    tl.store(out + tile * WIDTH + columns, tl.sum(token_weight[:, None] * block, 0), mask=inside)


@triton.jit(do_not_specialize=["sides", "chunks", "tiles"])
def _add_tiles(
    values, side, count, mass, out, sides, chunks, tiles,
    WIDTH: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
    OTHERS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """A partial sum of 2 (mu+ - mu-): the tiles of a scope, each times plus or minus 2 / its side's mass."""
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    part = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    scope = part // SPLITS
    total = tl.zeros([ROWS, COLUMNS], tl.float64)
    chunk = 0
    while chunk < chunks:
        first = count + chunk * sides + 2 * scope
        held = (tl.load(first) + TILE - 1) // TILE + (tl.load(first + 1) + TILE - 1) // TILE
        # A scope without tiles skips the search for its first tile.
        begin = chunk * tiles + tiles_before(count + chunk * sides, tl.where(held > 0, 2 * scope, 0), TILE, OTHERS)
        end = begin + held
        length = (end - begin + SPLITS - 1) // SPLITS
        start = begin + (part % SPLITS) * length
        stop = tl.minimum(start + length, end)
        at = start
        while at < stop:
            rows = at + tl.arange(0, ROWS)
            tile_side = tl.load(side + rows, mask=rows < stop, other=0)
            factor = (2.0 - 4.0 * (tile_side % 2)) / tl.maximum(tl.load(mass + tile_side), FLOOR)
            value = tl.load(values + rows[:, None] * WIDTH + columns[None, :], mask=(rows < stop)[:, None] & inside[None, :], other=0.0)
            total += value.to(tl.float64) * factor[:, None]
            at += ROWS
        chunk += 1
    tl.store(out + part * WIDTH + columns, tl.sum(total, 0), mask=inside)


@triton.jit
def _add_splits(parts, out, WIDTH: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: N803
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    scope = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    at = parts + (scope * SPLITS + tl.arange(0, SPLITS))[:, None] * WIDTH + columns[None, :]
    tl.store(out + scope * WIDTH + columns, tl.sum(tl.load(at, mask=inside[None, :], other=0.0), 0), mask=inside)


@triton.jit
def _dots(
    features, feature_row, side, scale, weight, direction, raw, parts, stride,
    WIDTH: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """r_t of some tokens of a tile; and over them: sum of w r, mean of r, sum of squared deviations."""
    program = tl.program_id(0).to(tl.int64)
    slots = program * LANES + tl.arange(0, LANES)
    rows = tl.load(feature_row + slots).to(tl.int64)
    wanted = rows >= 0
    scope_direction = direction + tl.maximum(tl.load(side + program // (TILE // LANES)), 0).to(tl.int64) // 2 * WIDTH
    total = tl.zeros([LANES, COLUMNS], tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < WIDTH
        at = features + rows[:, None] * stride + columns[None, :]
        block = tl.load(at, mask=wanted[:, None] & inside[None, :], other=0.0).to(tl.float32)
        total += block * tl.load(scope_direction + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    found = tl.sum(total, 1) * tl.load(scale + slots, mask=wanted, other=0.0)
    tl.store(raw + slots, found, mask=wanted)
    exact = tl.where(wanted, found, 0.0).to(tl.float64)
    mean = tl.sum(exact, 0) / tl.maximum(tl.sum(wanted.to(tl.int32), 0), 1).to(tl.float64)
    off = tl.where(wanted, exact - mean, 0.0)
    tl.store(parts + program * 3, tl.sum(exact * tl.load(weight + slots, mask=wanted, other=0.0).to(tl.float64), 0))
    tl.store(parts + program * 3 + 1, mean)
    tl.store(parts + program * 3 + 2, tl.sum(off * off, 0))


@triton.jit(do_not_specialize=["sides", "chunks", "tiles"])
def _moments(
    parts, count, out, sides, chunks, tiles,
    TILE: tl.constexpr, LANES: tl.constexpr, AT_ONCE: tl.constexpr, OTHERS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """For each side: tokens, sum of w r, mean of r, sum of squared deviations; partial moments are merged by Chan's rule."""
    side = tl.program_id(0).to(tl.int64)
    tokens = tl.zeros([AT_ONCE], tl.int64)
    weighted = tl.zeros([AT_ONCE], tl.float64)
    plain = tl.zeros([AT_ONCE], tl.float64)
    chunk = 0
    while chunk < chunks:
        held = tl.load(count + chunk * sides + side)
        before = tiles_before(count + chunk * sides, tl.where(held > 0, side, 0), TILE, OTHERS)
        begin = (chunk * tiles + before) * (TILE // LANES)
        bound = (held + LANES - 1) // LANES
        start = 0
        while start < bound:
            part = start + tl.arange(0, AT_ONCE)
            number = tl.minimum(tl.maximum(held - part * LANES, 0), LANES)
            at = parts + (begin + part) * 3
            tokens += number
            weighted += tl.load(at, mask=number > 0, other=0.0)
            plain += tl.load(at + 1, mask=number > 0, other=0.0) * number.to(tl.float64)
            start += AT_ONCE
        chunk += 1
    all_tokens = tl.sum(tokens, 0).to(tl.float64)
    mean = tl.sum(plain, 0) / tl.maximum(all_tokens, 1.0)
    deviation = tl.zeros([AT_ONCE], tl.float64)
    chunk = 0
    while chunk < chunks:
        held = tl.load(count + chunk * sides + side)
        before = tiles_before(count + chunk * sides, tl.where(held > 0, side, 0), TILE, OTHERS)
        begin = (chunk * tiles + before) * (TILE // LANES)
        bound = (held + LANES - 1) // LANES
        start = 0
        while start < bound:
            part = start + tl.arange(0, AT_ONCE)
            number = tl.minimum(tl.maximum(held - part * LANES, 0), LANES)
            at = parts + (begin + part) * 3
            gap = tl.load(at + 1, mask=number > 0, other=0.0) - mean
            deviation += tl.load(at + 2, mask=number > 0, other=0.0) + gap * gap * number.to(tl.float64)
            start += AT_ONCE
        chunk += 1
    tl.store(out + side * 4, all_tokens)
    tl.store(out + side * 4 + 1, tl.sum(weighted, 0))
    tl.store(out + side * 4 + 2, mean)
    tl.store(out + side * 4 + 3, tl.sum(deviation, 0))


@triton.jit
def _spread(tokens, deviation):
    return tl.sqrt(tl.maximum(deviation / tl.maximum(tokens, 1.0), FLOOR))


@triton.jit(do_not_specialize=["fixed_positive", "fixed_negative", "fixed_pooled", "gamma_scale"])
def _score_margins(
    raw, feature_row, side, size, cell, mass, moments, lagged, out, parts, fixed_positive, fixed_negative, fixed_pooled, gamma_scale,
    TILE: tl.constexpr, FIXED: tl.constexpr, HARD: tl.constexpr, SYMMETRIC: tl.constexpr, LAST: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Assignments of a tile's tokens: times |A| into their slots, or in the LAST round, as scores, into their cells; and their sum."""
    tile = tl.program_id(0).to(tl.int64)
    slots = tile * TILE + tl.arange(0, TILE)
    wanted = tl.load(feature_row + slots) >= 0
    side_id = tl.maximum(tl.load(side + tile), 0).to(tl.int64)
    first = side_id // 2 * 2
    positive = tl.load(moments + first * 4 + 1) / tl.maximum(tl.load(mass + first), FLOOR)
    negative = tl.load(moments + first * 4 + 5) / tl.maximum(tl.load(mass + first + 1), FLOOR)
    # ||mu-||^2 - ||mu+||^2: minus half of the weighted means of r.
    contrast = tl.load(raw + slots, mask=wanted, other=0.0).to(tl.float64) - 0.5 * (positive + negative)
    margin = tl.where(side_id % 2 == 0, contrast, -contrast)
    gamma = tl.zeros([TILE], tl.float64)
    if FIXED:
        if SYMMETRIC:
            gamma += fixed_pooled
        else:
            gamma += tl.where(side_id % 2 == 0, fixed_positive, fixed_negative)
    elif SYMMETRIC:
        one, two = tl.load(lagged + first * 4), tl.load(lagged + first * 4 + 4)
        gap = tl.load(lagged + first * 4 + 6) - tl.load(lagged + first * 4 + 2)
        deviation = tl.load(lagged + first * 4 + 3) + tl.load(lagged + first * 4 + 7) + gap * gap * one * two / tl.maximum(one + two, 1.0)
        gamma += gamma_scale * _spread(one + two, deviation)
    else:
        gamma += gamma_scale * _spread(tl.load(lagged + side_id * 4), tl.load(lagged + side_id * 4 + 3))
    small = tl.exp(-tl.abs(margin / gamma))
    if SYMMETRIC:
        share = (1.0 - small) / (1.0 + small)
        if HARD:
            share = tl.zeros([TILE], tl.float64) + 1.0
    else:
        share = tl.where(margin > 0, 1.0, small) / (1.0 + small)
        if HARD:
            share = (margin > 0).to(tl.float64)
    if LAST:
        found = share.to(tl.float32)
        tl.store(out + tl.load(cell + slots, mask=wanted, other=0), found, mask=wanted)
    else:
        found = (share * tl.load(size + slots, mask=wanted, other=0.0).to(tl.float64)).to(tl.float32)
        tl.store(out + slots, found, mask=wanted)
    tl.store(parts + tile, tl.sum(tl.where(wanted, found, 0.0).to(tl.float64), 0))


@triton.jit(do_not_specialize=["sides", "chunks", "tiles"])
def _add_sides(parts, count, out, sides, chunks, tiles, TILE: tl.constexpr, AT_ONCE: tl.constexpr, OTHERS: tl.constexpr):  # noqa: N803
    side = tl.program_id(0)
    total = tl.zeros([AT_ONCE], tl.float64)
    chunk = 0
    while chunk < chunks:
        held = (tl.load(count + chunk * sides + side) + TILE - 1) // TILE
        begin = chunk * tiles + tiles_before(count + chunk * sides, tl.where(held > 0, side, 0), TILE, OTHERS)
        end = begin + held
        start = begin
        while start < end:
            at = start + tl.arange(0, AT_ONCE)
            total += tl.load(parts + at, mask=at < end, other=0.0)
            start += AT_ONCE
        chunk += 1
    tl.store(out + side, tl.sum(total, 0))


@triton.jit(do_not_specialize=["rows", "width", "max_scopes", "expected", "low", "extent"])
def _map(
    score, mask, of_row, key, before, totals, tokens, out, rows, width, stride, max_scopes, expected, low, extent,
    NORMALIZE: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scope = tl.load(of_row + row)
    scored = tl.load(key + row) >= 0
    two_sided = scope < max_scopes
    mean = tl.zeros([COLUMNS], tl.float64) + 1.0
    if NORMALIZE:
        total = tl.load(totals + 2 * scope, mask=two_sided, other=0.0) + tl.load(totals + 2 * scope + 1, mask=two_sided, other=0.0)
        found = low + extent * total / tl.maximum(tl.load(tokens + scope, mask=two_sided, other=1.0), 1.0)
        mean *= tl.where(found > 0, found, 1.0)
    # NaN if the features are of another number of tokens; the engine raises on coefficients that are not finite.
    mismatch = (expected >= 0) & (tl.load(before + rows) != expected)
    start = 0
    while start < width:
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < width
        valid = tl.load(mask + row * stride + columns, mask=inside, other=0) != 0
        token_score = tl.load(score + row * width + columns, mask=valid & scored, other=0.0).to(tl.float64)
        value = tl.where(two_sided, (low + extent * token_score) / mean, 1.0)
        value = tl.where(mismatch, float("nan"), value)
        tl.store(out + row * width + columns, tl.where(valid, value, 0.0).to(tl.float32), mask=inside)
        start += COLUMNS


class ScoreOptions(NamedTuple):
    """How margins become assignments; see `credit.delta.algorithm`."""

    fixed: tuple[float, float, float] | None
    gamma_scale: float
    hard: bool
    symmetric: bool = False


def sums(slots: Slots, weight: Float[Tensor, " slot"], features: Tensor, chunk: int, out: Float[Tensor, "tile hid"]) -> None:
    """Write sum_t w_t v_t of every tile of one chunk into `out`, which holds those of all chunks."""
    width, tile = features.shape[1], slots.feature_row.shape[1]
    programs = slots.tiles * _blocks(width, COLUMNS)
    of_chunk = _of_chunk(slots, chunk, slots.feature_row, weight, slots.scale, out)
    launch(_tile_sums, programs, _rows(features), *of_chunk, features.stride(0), width, tile, COLUMNS, warps=WARPS)


def direction(
    slots: Slots, values: Float[Tensor, "tile hid"], mass: Float[Tensor, " side"], dtype: torch.dtype
) -> Float[Tensor, "scope hid"]:
    """2 (mu+ - mu-) of every scope."""
    scopes, width, tile = len(slots.tokens), values.shape[1], slots.feature_row.shape[1]
    # Many scopes already give enough programs, each with few tiles.
    splits = max(1, SPLITS >> (scopes - 1).bit_length())
    out = torch.empty(scopes, width, dtype=dtype, device=values.device)
    parts = out if splits == 1 else torch.empty(scopes * splits, width, dtype=torch.float64, device=values.device)
    blocks = scopes * _blocks(width, SUM_COLUMNS)
    shape = 2 * scopes, len(slots.held), slots.tiles, width, splits, tile, SUM_TILES, SUM_COLUMNS, OTHERS
    launch(_add_tiles, blocks * splits, values, slots.side, slots.held, mass, parts, *shape)
    if splits > 1:
        launch(_add_splits, blocks, parts, out, width, splits, SUM_COLUMNS)
    return out


def dots(
    slots: Slots,
    weight: Float[Tensor, " slot"],
    features: Tensor,
    chunk: int,
    direction: Float[Tensor, "scope hid"],
    raw: Float[Tensor, " slot"],
    parts: Float[Tensor, "part 3"],
) -> None:
    """Write r_t of every token of one chunk into `raw`, and its partial moments into `parts`; both hold those of all chunks."""
    width, tile, lanes = features.shape[1], slots.feature_row.shape[1], _lanes(slots)
    known = _of_chunk(slots, chunk, slots.feature_row, slots.side, slots.scale, weight)
    found = _of_chunk(slots, chunk, raw, parts)
    shape = width, tile, lanes, DOT_COLUMNS if width % DOT_COLUMNS == 0 else DOT_COLUMNS // 2
    launch(_dots, slots.tiles * tile // lanes, _rows(features), *known, direction, *found, features.stride(0), *shape, warps=DOT_WARPS)


def moments(slots: Slots, parts: Float[Tensor, "part 3"]) -> Float[Tensor, "side 4"]:
    """Tokens, sum of w r, mean of r and sum of its squared deviations."""
    sides, tile = len(slots.mass), slots.feature_row.shape[1]
    out = torch.empty(sides, 4, dtype=torch.float64, device=parts.device)
    shape = sides, len(slots.held), slots.tiles, tile, _lanes(slots), AT_ONCE, OTHERS
    launch(_moments, sides, parts, slots.held, out, *shape, warps=MANY_WARPS)
    return out


def score_margins(
    slots: Slots,
    raw: Float[Tensor, " slot"],
    mass: Float[Tensor, " side"],
    found: Float[Tensor, "side 4"],
    lagged: Float[Tensor, "side 4"],
    score_options: ScoreOptions,
    *,
    out: Float[Tensor, " target"],
    last: bool,
) -> Float[Tensor, " side"]:
    """Write the next round's weights into `out` by slot, or in the last round scores by cell; return their sums over each side."""
    tiles, tile = slots.feature_row.shape
    parts = torch.empty(tiles, dtype=torch.float64, device=raw.device)
    sides = torch.empty_like(slots.mass)
    fixed = score_options.fixed or (1.0, 1.0, 1.0)
    known = raw, slots.feature_row, slots.side, slots.size, slots.cell, mass, found, lagged, out, parts
    variants = tile, score_options.fixed is not None, score_options.hard, score_options.symmetric and last, last
    launch(_score_margins, tiles, *known, *fixed, score_options.gamma_scale, *variants)
    shape = len(sides), len(slots.held), slots.tiles, tile, AT_ONCE, OTHERS
    launch(_add_sides, len(sides), parts, slots.held, sides, *shape)
    return sides


def coefficients(
    score: Float[Tensor, " cell"],
    mask: Tensor,
    rows: ResponseLayout,
    totals: Float[Tensor, " side"],
    tokens: Float[Tensor, " scope"],
    *,
    low: float,
    high: float,
    normalize: bool,
    expected: int,
) -> Float[Tensor, "seq tok"]:
    """Map scores to [low, high] and divide by their mean over a scope; NaN unless the mask has `expected` tokens (-1: any number)."""
    out = torch.empty(mask.shape, dtype=torch.float32, device=mask.device)
    known = score, mask.view(torch.uint8), rows.of_row, rows.key, rows.before, totals, tokens, out
    shape = len(mask), mask.shape[1], mask.stride(0), len(tokens), expected
    launch(_map, len(mask), *known, *shape, low, high - low, normalize, 1024)
    return out


def new_parts(slots: Slots) -> Float[Tensor, "part 3"]:
    """Storage for the partial moments of `dots`."""
    return torch.empty(slots.feature_row.numel() // _lanes(slots), 3, dtype=torch.float64, device=slots.feature_row.device)


def _of_chunk(slots: Slots, chunk: int, *tensors: Tensor) -> Sequence[Tensor]:
    """The slices of the tensors that belong to one chunk; every chunk has the same number of tiles."""
    chunks = len(slots.held)
    # A view costs almost as much as a launch: with one chunk there is none.
    return tensors if chunks == 1 else [tensor[len(tensor) // chunks * chunk : len(tensor) // chunks * (chunk + 1)] for tensor in tensors]


def _lanes(slots: Slots) -> int:
    return min(DOT_LANES, slots.feature_row.shape[1])


def _blocks(width: int, columns: int) -> int:
    return -(-width // columns)


def _rows(features: Tensor) -> Tensor:
    if features.stride(1) != 1:
        raise ValueError(f"features have strides {features.stride()}; the elements of a row must be contiguous")
    return features

# ruff: noqa: N803
"""The last norm, and drawing a token: a program per slot."""

import triton
import triton.language as tl


@triton.jit
def final_norm_kernel(
    x_ptr, squares_ptr, norm_ptr, out_ptr, kept_ptr, row_ptr, position_ptr, ended_ptr,
    hidden, tiles, room, eps,
    KEEPS: tl.constexpr, TILES: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    tile = tl.arange(0, TILES)
    scale = tl.rsqrt(tl.sum(tl.load(squares_ptr + slot * tiles + tile, mask=tile < tiles, other=0.0), 0) / hidden + eps)
    column = tl.arange(0, HIDDEN)
    inside = column < hidden
    x = tl.load(x_ptr + slot * hidden + column, mask=inside, other=0.0)
    norm = tl.load(norm_ptr + column, mask=inside, other=0.0)
    normed = (norm.to(tl.float32) * (x.to(tl.float32) * scale).to(x.dtype).to(tl.float32)).to(x.dtype)
    tl.store(out_ptr + slot * hidden + column, normed.to(out_ptr.dtype.element_ty), mask=inside)
    if KEEPS:
        row = tl.load(row_ptr + slot).to(tl.int64)
        # Two conditions in turn: a row that is none has no place to read.
        if row >= 0:  # noqa: SIM102
            if tl.load(ended_ptr + row) == 0:
                place = (row * room + tl.load(position_ptr + slot)) * hidden
                tl.store(kept_ptr + place + column, normed.to(kept_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _first(chosen, index, size: tl.constexpr):
    return tl.min(tl.where(chosen, index, size), 0)


@triton.jit
def draw_kernel(
    logits_ptr, top_ptr, mass_ptr, moment_ptr, temperature_unused, greedy_ptr, seed_ptr, first_row_ptr, ends_ptr,
    row_ptr, prompt_unused, position_ptr,
    tokens_ptr, logp_ptr, entropy_ptr, length_ptr, ended_ptr, bad_ptr,
    embeddings_ptr, x_ptr, squares_ptr, norm_ptr, weighted_ptr,
    vocabulary, count, room, hidden, tiles,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, ENDS: tl.constexpr, HIDDEN: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    row = tl.load(row_ptr + slot).to(tl.int64)
    if row < 0:
        return
    if tl.load(ended_ptr + row) != 0:
        return
    position = tl.load(position_ptr + slot)
    greedy = tl.load(greedy_ptr) != 0
    number = tl.load(first_row_ptr) + row.to(tl.int32)
    nothing = number * 0
    block_bits, token_bits, _, _ = tl.philox(tl.load(seed_ptr), position, number, nothing, nothing)  # pyright: ignore[reportGeneralTypeIssues]
    block_chance = (block_bits >> 8).to(tl.float32) * (1.0 / 16777216.0)
    token_chance = (token_bits >> 8).to(tl.float32) * (1.0 / 16777216.0)

    block = tl.arange(0, COUNT)
    inside = block < count
    top = tl.load(top_ptr + slot * count + block, mask=inside, other=float("-inf"))
    mass = tl.load(mass_ptr + slot * count + block, mask=inside, other=0.0)
    moment = tl.load(moment_ptr + slot * count + block, mask=inside, other=0.0)
    highest = tl.max(top, 0)
    weight = tl.exp(top - highest)
    moment = weight * moment + tl.where(mass != 0, weight * mass * (top - highest), 0.0)
    mass = weight * mass
    total = tl.sum(mass, 0)
    # A block without mass is never drawn, however its cumulative sum was rounded.
    drawn = _first((tl.cumsum(mass, 0) > block_chance * total) & (mass > 0), block, COUNT)
    likeliest = _first(top == highest, block, COUNT)
    chosen = tl.where(greedy | (drawn >= count), likeliest, drawn)

    inner = tl.arange(0, BLOCK)
    token = chosen * BLOCK + inner
    z = tl.load(logits_ptr + slot.to(tl.int64) * vocabulary + token, mask=token < vocabulary, other=float("-inf"))
    weights = tl.exp(z - highest)
    drawn = _first((tl.cumsum(weights, 0) > token_chance * tl.sum(weights, 0)) & (weights > 0), inner, BLOCK)
    likeliest = _first(z == tl.max(z, 0), inner, BLOCK)
    picked = tl.where(greedy | (drawn >= BLOCK), likeliest, drawn)
    its_z = tl.sum(tl.where(inner == picked, z, 0.0), 0)
    # Nothing was found among what is no number: any token will do, but it must be one.
    token = tl.minimum(chosen * BLOCK + picked, vocabulary - 1)

    log_total = tl.log(total)
    place = row * room + position
    tl.store(tokens_ptr + place, token.to(tl.int64))
    tl.store(logp_ptr + place, its_z - highest - log_total)
    tl.store(entropy_ptr + place, log_total - tl.sum(moment, 0) / total)
    tl.store(length_ptr + row, position + 1)
    # At least 1 (the likeliest token's own weight), or no number.
    tl.store(bad_ptr + row, 1, mask=(total > 0) == 0)
    ends = tl.load(ends_ptr + tl.arange(0, ENDS))
    if tl.sum((ends == token).to(tl.int32), 0) > 0:
        tl.store(ended_ptr + row, 1)
    tl.store(position_ptr + slot, position + 1)

    column = tl.arange(0, HIDDEN)
    x = tl.load(embeddings_ptr + token.to(tl.int64) * hidden + column, mask=column < hidden, other=0.0)
    tl.store(x_ptr + slot * hidden + column, x.to(x_ptr.dtype.element_ty), mask=column < hidden)
    exact = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    norm = tl.load(norm_ptr + column, mask=column < hidden, other=0.0).to(tl.float32)
    tl.store(weighted_ptr + slot * hidden + column, (exact * norm).to(weighted_ptr.dtype.element_ty), mask=column < hidden)
    tile = tl.arange(0, TILES)
    sums = tl.sum(tl.reshape(exact * exact, (TILES, TILE)), 1)
    tl.store(squares_ptr + slot * tiles + tile, sums, mask=tile < tiles)

"""Triton kernels of a decode step: attention, sampling, and matrix products fused with the norm before and the step after them.

Attention has one program per slot and key-value head, which reads the head's query heads together; the last norm and sampling have one
per slot. A product is summed over its inner dimension in a fixed order for any number of slots, so a row's numbers do not depend on
the other rows of the batch. Weights are the model's own [out, in] tensors.
"""

import triton
import triton.language as tl

# ruff: noqa: N803


@triton.jit
def _turn(first, second, cos, sin, compute: tl.constexpr):
    return (first * cos - second * sin).to(compute), (second * cos + first * sin).to(compute)


@triton.jit
def attend_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, prompt_k_ptr, prompt_v_ptr, own_k_ptr, own_v_ptr, prompt_length_ptr,
    row_ptr, prompt_ptr, position_ptr, ended_ptr, out_ptr,
    kv_heads, prompt_room, own_room, eps, scale,
    HAS_NORM: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    slot, head = tl.program_id(0), tl.program_id(1)
    # Loads are ordered by dependency: an address that needs no other is loaded first.
    row = tl.load(row_ptr + slot).to(tl.int64)
    prompt = tl.load(prompt_ptr + slot).to(tl.int64)
    place = tl.load(position_ptr + slot) - 1
    half = tl.arange(0, HALF)
    whole = tl.arange(0, 2 * HALF)
    query = head * GROUP + tl.arange(0, GROUP_BLOCK)
    real = (tl.arange(0, GROUP_BLOCK) < GROUP)[:, None]
    qkv_ptr += slot * (kv_heads * (GROUP + 2) * 2 * HALF)
    first_q = tl.load(qkv_ptr + query[:, None] * (2 * HALF) + half[None, :], mask=real, other=0.0)
    second_q = tl.load(qkv_ptr + query[:, None] * (2 * HALF) + HALF + half[None, :], mask=real, other=0.0)
    k_ptr = qkv_ptr + (kv_heads * GROUP + head) * (2 * HALF)
    first_k = tl.load(k_ptr + half)
    second_k = tl.load(k_ptr + HALF + half)
    value = tl.load(k_ptr + kv_heads * (2 * HALF) + whole)
    length = tl.load(prompt_length_ptr + prompt)
    ended = tl.load(ended_ptr + tl.maximum(row, 0))
    if (row < 0) | (ended != 0):
        return
    cos = tl.load(cos_ptr + (length + place) * HALF + half)
    sin = tl.load(sin_ptr + (length + place) * HALF + half)
    compute = qkv_ptr.dtype.element_ty
    first_q, second_q = first_q.to(tl.float32), second_q.to(tl.float32)
    first_k, second_k = first_k.to(tl.float32), second_k.to(tl.float32)
    if HAS_NORM:
        q_scale = tl.rsqrt((tl.sum(first_q * first_q, 1) + tl.sum(second_q * second_q, 1)) / (2 * HALF) + eps)[:, None]
        first_norm, second_norm = tl.load(q_norm_ptr + half).to(tl.float32), tl.load(q_norm_ptr + HALF + half).to(tl.float32)
        first_q = ((first_q * q_scale).to(compute).to(tl.float32) * first_norm[None, :]).to(compute).to(tl.float32)
        second_q = ((second_q * q_scale).to(compute).to(tl.float32) * second_norm[None, :]).to(compute).to(tl.float32)
        k_scale = tl.rsqrt((tl.sum(first_k * first_k, 0) + tl.sum(second_k * second_k, 0)) / (2 * HALF) + eps)
        first_norm, second_norm = tl.load(k_norm_ptr + half).to(tl.float32), tl.load(k_norm_ptr + HALF + half).to(tl.float32)
        first_k = ((first_k * k_scale).to(compute).to(tl.float32) * first_norm).to(compute).to(tl.float32)
        second_k = ((second_k * k_scale).to(compute).to(tl.float32) * second_norm).to(compute).to(tl.float32)
    first_q, second_q = _turn(first_q, second_q, cos[None, :], sin[None, :], compute)  # pyright: ignore[reportGeneralTypeIssues]
    first_k, second_k = _turn(first_k, second_k, cos, sin, compute)
    own = (row * kv_heads + head) * own_room * (2 * HALF)
    tl.store(own_k_ptr + own + place * (2 * HALF) + half, first_k)
    tl.store(own_k_ptr + own + place * (2 * HALF) + HALF + half, second_k)
    tl.store(own_v_ptr + own + place * (2 * HALF) + whole, value)
    # The new token attends to itself first, from registers: nothing just written is read back.
    top = tl.sum(first_q.to(tl.float32) * first_k.to(tl.float32)[None, :], 1)
    top = (top + tl.sum(second_q.to(tl.float32) * second_k.to(tl.float32)[None, :], 1)) * scale
    total = tl.full((GROUP_BLOCK,), 1.0, tl.float32)
    sums = tl.zeros((GROUP_BLOCK, 2 * HALF), tl.float32) + value.to(tl.float32)[None, :]
    read = (prompt * kv_heads + head) * prompt_room * (2 * HALF)
    in_prompt = tl.cdiv(length, BLOCK)
    # One loop over both caches: the response's first keys are on their way while the prompt's last are used.
    for number in range(in_prompt + tl.cdiv(place, BLOCK)):
        answers = number >= in_prompt
        keys_ptr = tl.where(answers, own_k_ptr + own, prompt_k_ptr + read)
        values_ptr = tl.where(answers, own_v_ptr + own, prompt_v_ptr + read)
        column = tl.where(answers, number - in_prompt, number) * BLOCK + tl.arange(0, BLOCK)
        seen = column < tl.where(answers, place, length)
        key = keys_ptr + column[:, None] * (2 * HALF) + half[None, :]
        first = tl.load(key, mask=seen[:, None], other=0.0)
        second = tl.load(key + HALF, mask=seen[:, None], other=0.0)
        values = tl.load(values_ptr + column[:, None] * (2 * HALF) + whole[None, :], mask=seen[:, None], other=0.0)
        scores = tl.dot(first_q, tl.trans(first), input_precision=PRECISION)
        scores = tl.dot(second_q, tl.trans(second), scores, input_precision=PRECISION)
        scores = tl.where(seen[None, :], scores * scale, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        fade = tl.exp2(top - highest)
        weights = tl.exp2(scores - highest[:, None])
        total = total * fade + tl.sum(weights, 1)
        sums = tl.dot(weights.to(values.dtype), values, sums * fade[:, None], input_precision=PRECISION)
        top = highest
    out = out_ptr + slot * (kv_heads * GROUP * 2 * HALF) + query[:, None] * (2 * HALF) + whole[None, :]
    tl.store(out, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=real)


# ruff: noqa: N803


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
    # With NaN probabilities no token is found: any valid id will do.
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


# ruff: noqa: N803


@triton.jit
def _product(
    given_ptr, weight_ptr, slot, inside, column, exists,
    INNER: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, INNER, BLOCK_K):
        inner = first + tl.arange(0, BLOCK_K)
        given_there, weight_there = inside[:, None], exists[:, None]
        if not EVEN:
            given_there &= (inner < INNER)[None, :]
            weight_there &= (inner < INNER)[None, :]
        given = tl.load(given_ptr + slot[:, None] * INNER + inner[None, :], mask=given_there, other=0.0)
        weight = tl.load(weight_ptr + column[:, None] * INNER + inner[None, :], mask=weight_there, other=0.0)
        sums = tl.dot(given, tl.trans(weight), sums, input_precision=PRECISION)
    return sums


@triton.jit
def _load_squares(squares_ptr, slot, inside, tiles, LEVELS: tl.constexpr):
    tile = tl.arange(0, 1 << LEVELS)  # pyright: ignore[reportOperatorIssue]
    return tl.load(squares_ptr + slot[:, None] * tiles + tile[None, :], mask=inside[:, None] & (tile < tiles)[None, :], other=0.0)


@triton.jit
def _norm_scale(squares, hidden, eps, SLOTS: tl.constexpr, LEVELS: tl.constexpr):
    # In pairs: a sum over an axis takes the order in which the tile happens to lie in registers, and tiles differ.
    for level in tl.static_range(LEVELS):  # pyright: ignore[reportGeneralTypeIssues]
        left, right = tl.split(tl.reshape(squares, (SLOTS, 1 << (LEVELS - level - 1), 2)))
        squares = left + right
    return tl.rsqrt(squares / hidden + eps)


@triton.jit(do_not_specialize=["slots"])
def norm_linear_kernel(
    given_ptr, squares_ptr, q_ptr, k_ptr, v_ptr, q_bias_ptr, k_bias_ptr, v_bias_ptr, out_ptr,
    slots, tiles, q_width, kv_width, eps,
    HAS_BIAS: tl.constexpr, LEVELS: tl.constexpr,
    INNER: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = slot < slots
    start = tl.program_id(1) * BLOCK_N
    # A tile lies in one of the three matrices: BLOCK_N divides their heights.
    weight_ptr, bias_ptr, column, height = q_ptr, q_bias_ptr, start, q_width
    if start >= q_width + kv_width:
        weight_ptr, bias_ptr, column, height = v_ptr, v_bias_ptr, start - q_width - kv_width, kv_width
    elif start >= q_width:
        weight_ptr, bias_ptr, column, height = k_ptr, k_bias_ptr, start - q_width, kv_width
    column = column + tl.arange(0, BLOCK_N)
    # Operands of the step after the product are loaded before it.
    squares = _load_squares(squares_ptr, slot, inside, tiles, LEVELS)
    sums = _product(given_ptr, weight_ptr, slot, inside, column, column < height, INNER, EVEN, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    sums *= _norm_scale(squares, INNER, eps, BLOCK_M, LEVELS)
    if HAS_BIAS:
        sums += tl.load(bias_ptr + column).to(tl.float32)[None, :]
    place = start + tl.arange(0, BLOCK_N)
    tl.store(out_ptr + slot[:, None] * (q_width + 2 * kv_width) + place[None, :], sums.to(out_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["slots"])
def norm_gate_up_kernel(
    given_ptr, squares_ptr, gate_ptr, up_ptr, out_ptr,
    slots, tiles, width, eps,
    LEVELS: tl.constexpr,
    INNER: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = slot < slots
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    exists = column < width
    squares = _load_squares(squares_ptr, slot, inside, tiles, LEVELS)
    gates = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    ups = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, INNER, BLOCK_K):
        inner = first + tl.arange(0, BLOCK_K)
        given_there, weight_there = inside[:, None], exists[:, None]
        if not EVEN:
            given_there &= (inner < INNER)[None, :]
            weight_there &= (inner < INNER)[None, :]
        there = column[:, None] * INNER + inner[None, :]
        given = tl.load(given_ptr + slot[:, None] * INNER + inner[None, :], mask=given_there, other=0.0)
        gate = tl.load(gate_ptr + there, mask=weight_there, other=0.0)
        up = tl.load(up_ptr + there, mask=weight_there, other=0.0)
        gates = tl.dot(given, tl.trans(gate), gates, input_precision=PRECISION)
        ups = tl.dot(given, tl.trans(up), ups, input_precision=PRECISION)
    scale = _norm_scale(squares, INNER, eps, BLOCK_M, LEVELS)
    compute = out_ptr.dtype.element_ty
    gates = (gates * scale).to(compute).to(tl.float32)
    active = (gates * tl.sigmoid(gates)).to(compute).to(tl.float32) * (ups * scale).to(compute).to(tl.float32)
    tl.store(out_ptr + slot[:, None] * width + column[None, :], active.to(compute), mask=inside[:, None] & exists[None, :])


@triton.jit(do_not_specialize=["slots"])
def linear_add_kernel(
    given_ptr, weight_ptr, x_ptr, squares_ptr, norm_ptr, weighted_ptr,
    slots, hidden, tiles,
    TILE: tl.constexpr,
    INNER: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = slot < slots
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    exists = column < hidden
    place = slot[:, None] * hidden + column[None, :]
    mask = inside[:, None] & exists[None, :]
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    norm = tl.load(norm_ptr + column, mask=exists, other=0.0)
    sums = _product(given_ptr, weight_ptr, slot, inside, column, exists, INNER, EVEN, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    x = (x.to(tl.float32) + sums.to(given_ptr.dtype.element_ty).to(tl.float32)).to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + place, x, mask=mask)
    exact = x.to(tl.float32)
    tl.store(weighted_ptr + place, (exact * norm.to(tl.float32)[None, :]).to(weighted_ptr.dtype.element_ty), mask=mask)
    squares = tl.sum(tl.reshape(exact * exact, (BLOCK_M, BLOCK_N // TILE, TILE)), 2)
    tile = tl.program_id(1) * (BLOCK_N // TILE) + tl.arange(0, BLOCK_N // TILE)
    tl.store(squares_ptr + slot[:, None] * tiles + tile[None, :], squares, mask=inside[:, None] & (tile < tiles)[None, :])


@triton.jit(do_not_specialize=["slots"])
def head_kernel(
    given_ptr, weight_ptr, temperature_ptr, logits_ptr, top_ptr, mass_ptr, moment_ptr,
    slots, vocabulary, count,
    INNER: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = slot < slots
    token = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    exists = token < vocabulary
    sums = _product(given_ptr, weight_ptr, slot, inside, token, exists, INNER, EVEN, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    z = tl.where(exists[None, :], sums / tl.load(temperature_ptr), float("-inf"))
    # 64 bits: slots x vocabulary passes 2^31.
    place = slot.to(tl.int64)[:, None] * vocabulary + token[None, :]
    tl.store(logits_ptr + place, z, mask=inside[:, None] & exists[None, :])
    top = tl.max(z, 1)
    below = z - top[:, None]
    weights = tl.exp(below)
    block = slot * count + tl.program_id(1)
    tl.store(top_ptr + block, top, mask=inside)
    tl.store(mass_ptr + block, tl.sum(weights, 1), mask=inside)
    tl.store(moment_ptr + block, tl.sum(tl.where(weights != 0, weights * below, 0.0), 1), mask=inside)

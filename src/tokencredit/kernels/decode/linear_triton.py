# ruff: noqa: N803
"""Matrix products of a decode step, with the scale of the norm before them and the residual, activation or softmax sums after them.

A product is summed over its inner dimension in one order whatever the number of slots, so a row's numbers do not depend on who is
beside it. Weights are the model's own [out, in] tensors.
"""

import triton
import triton.language as tl


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
    # What follows the product is asked for before it.
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

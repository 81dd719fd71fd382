# ruff: noqa: N803
"""Attention of one new token: a program per slot and key-value head, whose query heads are read together."""

import triton
import triton.language as tl


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
    # In the order in which one address needs another: what needs none is asked for first.
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
    # The new token looks at itself first, from registers: nothing just written is read back.
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

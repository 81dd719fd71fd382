# ruff: noqa: N803
"""Triton: a block of share_t (e_y - p), computed anew from hidden states, weight and the log-normaliser; and what rounding took from it."""

import triton
import triton.language as tl

from tokencredit.kernels.lm_head.tile_kernels import bend, grouped_place, load_tile


@triton.jit(do_not_specialize=["tok", "vocab", "token_blocks", "runs", "tiles_per_run", "group"])
def error_kernel(
    hidden,
    weight,
    tokens,
    log_normaliser,
    share,
    out,
    remainder,
    tok,
    vocab,
    hidden_stride,
    weight_stride,
    out_stride,
    token_blocks,
    runs,
    tiles_per_run,
    group,
    steepness,
    limit,
    HID: tl.constexpr,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    CAPPED: tl.constexpr,
    SLOPED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    DESCRIBED_OUT: tl.constexpr,
    REMAINDER: tl.constexpr,
    FLATTEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block, run = grouped_place(tl.program_id(0), token_blocks, runs, group)  # pyright: ignore[reportGeneralTypeIssues]
    row = block * TOKENS
    rows = row + tl.arange(0, TOKENS)
    inside = rows < tok
    token = tl.load(tokens + rows, mask=inside, other=-1).to(tl.int32)
    normaliser = tl.load(log_normaliser + rows, mask=inside, other=0.0) * 1.4426950408889634
    amount = tl.load(share + rows, mask=inside, other=0.0)
    if SLOPED:
        amount *= steepness
    first = run * tiles_per_run
    for tile in tl.range(0, tl.minimum(tiles_per_run, tl.cdiv(vocab, VOCAB) - first), flatten=FLATTEN):
        column = (first + tile) * VOCAB
        raw = tl.zeros([TOKENS, VOCAB], tl.float32)
        for k in range(0, HID, WIDTH):
            left = load_tile(hidden, row, k, tok, hidden_stride, HID, TOKENS, WIDTH, DESCRIPTORS)
            right = load_tile(weight, column, k, vocab, weight_stride, HID, VOCAB, WIDTH, DESCRIPTORS)
            raw = tl.dot(left, right.T, raw, input_precision=PRECISION)
        if CAPPED:
            bent = bend(raw, steepness, limit)
            p = tl.exp2(bent * (limit * 1.4426950408889634) - normaliser[:, None])
        else:
            p = tl.exp2(raw * (steepness * 1.4426950408889634) - normaliser[:, None])
        columns = column + tl.arange(0, VOCAB)
        error = amount[:, None] * (tl.where(columns[None, :] == token[:, None], 1.0, 0.0) - p)
        if SLOPED and CAPPED:
            error *= 1 - bent * bent
        if DESCRIBED_OUT:
            leading = error.to(out.dtype)
            out.store([row, column], leading)
            if REMAINDER:
                remainder.store([row, column], (error - leading.to(tl.float32)).to(out.dtype))
        else:
            place = rows.to(tl.int64)[:, None] * out_stride + columns[None, :]
            wanted = inside[:, None] & (columns < vocab)[None, :]
            leading = error.to(out.dtype.element_ty)
            tl.store(out + place, leading, mask=wanted)
            if REMAINDER:
                tl.store(remainder + place, (error - leading.to(tl.float32)).to(out.dtype.element_ty), mask=wanted)

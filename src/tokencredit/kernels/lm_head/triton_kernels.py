"""Triton kernels of the LM head: one pass with running sums per token, and blocks of share_t (e_y - p) with their rounding remainder.

Errors are recomputed from hidden states, weight and the log-normaliser. Logits are in units of ln 2, so that exp2 replaces exp.
"""

import triton
import triton.language as tl

# ruff: noqa: N803


@triton.jit
def grouped_place(program, token_blocks, runs, group):
    """Which (token block, vocabulary run) a program has: token blocks side by side share a run, `group` of them share the cache."""
    first = program // (group * runs) * group
    size = tl.minimum(token_blocks - first, group)
    within = program - first * runs
    return first + within % size, within // size


@triton.jit
def load_tile(source, row, column, rows, stride, HID: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """source[row : row + ROWS, column : column + COLUMNS]; rows past the end are any, columns past the end 0."""
    if DESCRIPTORS:
        tile = source.load([row, column])
    else:
        # The start may lie beyond 2^31; steps from it do not.
        start = source + row.to(tl.int64) * stride + column
        local = tl.minimum(tl.arange(0, ROWS), rows - 1 - row)
        columns = tl.arange(0, COLUMNS)
        if HID % COLUMNS == 0:
            tile = tl.load(start + local[:, None] * stride + columns[None, :])
        else:
            tile = tl.load(start + local[:, None] * stride + columns[None, :], mask=(column + columns)[None, :] < HID, other=0.0)
    return tile


@triton.jit
def bend(raw, steepness, limit):
    """tanh(steepness raw / limit), of which a soft-capped logit is `limit` times."""
    return 1 - 2 / (tl.exp2(raw * (2.8853900817779268 * steepness / limit)) + 1)


# ruff: noqa: N803


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


# ruff: noqa: N803


NOWHERE = tl.constexpr(-1e20)
"""A logit with probability 0; finite, so that 0 times it is 0."""


@triton.jit(do_not_specialize=["tok", "vocab", "token_blocks", "runs", "tiles_per_run", "group"])
def sweep_kernel(
    hidden,
    weight,
    matrix,
    remainder,
    partial,
    tok,
    vocab,
    hidden_stride,
    weight_stride,
    matrix_stride,
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
    EVEN_VOCAB: tl.constexpr,
    CAPPED: tl.constexpr,
    MATRICES: tl.constexpr,
    SLOPED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    FLATTEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Over a run of the vocabulary: top, sum of e, sum of e (logit - top), sum of e^2, sum of e score; e = 2^(logit - top).

    Score is h M', with M = matrix + remainder (its leading digits, and those that follow).
    """
    block, run = grouped_place(tl.program_id(0), token_blocks, runs, group)  # pyright: ignore[reportGeneralTypeIssues]
    row = block * TOKENS
    top = tl.full([TOKENS], NOWHERE, tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    below = tl.zeros([TOKENS], tl.float32)
    squares = tl.zeros([TOKENS], tl.float32)
    scored = tl.zeros([TOKENS], tl.float32)
    first = run * tiles_per_run
    for tile in tl.range(0, tl.minimum(tiles_per_run, tl.cdiv(vocab, VOCAB) - first), flatten=FLATTEN):
        column = (first + tile) * VOCAB
        raw = tl.zeros([TOKENS, VOCAB], tl.float32)
        for k in range(0, HID, WIDTH):
            left = load_tile(hidden, row, k, tok, hidden_stride, HID, TOKENS, WIDTH, DESCRIPTORS)
            right = load_tile(weight, column, k, vocab, weight_stride, HID, VOCAB, WIDTH, DESCRIPTORS)
            raw = tl.dot(left, right.T, raw, input_precision=PRECISION)
        # Loops of their own: two products in one wait for each other.
        if MATRICES > 0:
            scores = tl.zeros([TOKENS, VOCAB], tl.float32)
            for k in range(0, HID, WIDTH):
                left = load_tile(hidden, row, k, tok, hidden_stride, HID, TOKENS, WIDTH, DESCRIPTORS)
                right = load_tile(matrix, column, k, vocab, matrix_stride, HID, VOCAB, WIDTH, DESCRIPTORS)
                scores = tl.dot(left, right.T, scores, input_precision=PRECISION)
        if MATRICES > 1:
            for k in range(0, HID, WIDTH):
                left = load_tile(hidden, row, k, tok, hidden_stride, HID, TOKENS, WIDTH, DESCRIPTORS)
                right = load_tile(remainder, column, k, vocab, matrix_stride, HID, VOCAB, WIDTH, DESCRIPTORS)
                scores = tl.dot(left, right.T, scores, input_precision=PRECISION)
        if CAPPED:
            bent = bend(raw, steepness, limit)
            logits = bent * (limit * 1.4426950408889634)
            factor = 1.0
        else:
            logits = raw
            factor = steepness * 1.4426950408889634
        if not EVEN_VOCAB:
            logits = tl.where((column + tl.arange(0, VOCAB))[None, :] < vocab, logits, NOWHERE)
        higher = tl.maximum(top, tl.max(logits, 1) * factor)
        step = logits * factor - higher[:, None]
        mass = tl.exp2(step)
        fall = top - higher
        keep = tl.exp2(fall)
        below = keep * (below + total * fall) + tl.sum(mass * step, 1)
        squares = keep * keep * squares + tl.sum(mass * mass, 1)
        total = keep * total + tl.sum(mass, 1)
        if MATRICES > 0:
            if SLOPED and CAPPED:
                scores *= 1 - bent * bent
            scored = keep * scored + tl.sum(mass * scores, 1)
        top = higher
    rows = row + tl.arange(0, TOKENS)
    inside = rows < tok
    place = partial + run.to(tl.int64) * tok + rows
    field = runs.to(tl.int64) * tok
    tl.store(place, top, mask=inside)
    tl.store(place + field, total, mask=inside)
    tl.store(place + 2 * field, below, mask=inside)
    tl.store(place + 3 * field, squares, mask=inside)
    if MATRICES > 0:
        tl.store(place + 4 * field, scored, mask=inside)


@triton.jit(do_not_specialize=["tok", "runs"])
def combine_kernel(
    partial,
    hidden,
    weight,
    matrix,
    tokens,
    out,
    tok,
    hidden_stride,
    weight_stride,
    matrix_stride,
    runs,
    steepness,
    limit,
    HID: tl.constexpr,
    RUNS: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    CAPPED: tl.constexpr,
    PROJECTED: tl.constexpr,
    SLOPED: tl.constexpr,
):
    """Write log p, entropy, sum of p^2, log normaliser and projection; the tokens' own logits are products of two rows."""
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = rows < tok
    token = tl.load(tokens + rows, mask=inside, other=0).to(tl.int64)
    own = tl.zeros([TOKENS], tl.float32)
    own_score = tl.zeros([TOKENS], tl.float32)
    for k in range(0, HID, WIDTH):
        columns = k + tl.arange(0, WIDTH)
        mask = inside[:, None] & (columns < HID)[None, :]
        left = tl.load(hidden + rows.to(tl.int64)[:, None] * hidden_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        right = tl.load(weight + token[:, None] * weight_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        own += tl.sum(left * right, 1)
        if PROJECTED:
            right = tl.load(matrix + token[:, None] * matrix_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
            own_score += tl.sum(left * right, 1)
    slope = own * 0 + (steepness if SLOPED else 1.0)
    if CAPPED:
        bent = bend(own, steepness, limit)
        own = bent * limit
        if SLOPED:
            slope *= 1 - bent * bent
    else:
        own *= steepness

    run = tl.arange(0, RUNS)
    place = partial + run.to(tl.int64)[:, None] * tok + rows[None, :]
    field = runs.to(tl.int64) * tok
    mask = (run < runs)[:, None] & inside[None, :]
    tops = tl.load(place, mask=mask, other=NOWHERE)
    totals = tl.load(place + field, mask=mask, other=0.0)
    belows = tl.load(place + 2 * field, mask=mask, other=0.0)
    squares = tl.load(place + 3 * field, mask=mask, other=0.0)
    top = tl.max(tops, 0)
    fall = tops - top[None, :]
    keep = tl.exp2(fall)
    total = tl.where(inside, tl.sum(keep * totals, 0), 1.0)
    below = tl.sum(keep * (belows + totals * fall), 0)
    log_total = tl.log2(total)
    log_normaliser = (top + log_total) * 0.6931471805599453
    # The sweep computed the same logit in another order of additions; a difference in the last digit must not give p > 1.
    tl.store(out + rows, tl.minimum(own - log_normaliser, 0.0), mask=inside)
    tl.store(out + tok + rows, (log_total - below / total) * 0.6931471805599453, mask=inside)
    tl.store(out + 2 * tok + rows, tl.sum(keep * keep * squares, 0) / (total * total), mask=inside)
    tl.store(out + 3 * tok + rows, log_normaliser, mask=inside)
    if PROJECTED:
        scored = tl.sum(keep * tl.load(place + 4 * field, mask=mask, other=0.0), 0) / total
        tl.store(out + 4 * tok + rows, own_score * slope - scored * (steepness if SLOPED else 1.0), mask=inside)

# ruff: noqa: N803
"""Triton: a tile of hidden x weight, and logits from it. Logits are in units of ln 2 here, so that exp2 serves."""

import triton
import triton.language as tl


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

"""The LM head in torch, one block of [tok, vocab] at a time."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.kernels.lm_head.precision import is_half, wide, wide_scores
from tokencredit.kernels.lm_head.rule import HeadRule, runs, slope, to_logits_

ARRAYS = 4
"""Blocks in memory at once: logits, their exponentials, products with a matrix, slopes."""


class Sweep(NamedTuple):
    logp: Float[Tensor, " tok"]
    entropy: Float[Tensor, " tok"]
    squared_mass: Float[Tensor, " tok"]
    log_normaliser: Float[Tensor, " tok"]
    projection: Float[Tensor, " tok"] | None


def pick(rows: Float[Tensor, "tok vocab"], tokens: Int[Tensor, " tok"]) -> Float[Tensor, " tok"]:
    return rows.gather(-1, tokens[:, None]).squeeze(-1)


def _sweep_rows(hidden: Tensor, weight: Tensor, tokens: Tensor, rule: HeadRule, matrix: Tensor | None, sloped: bool) -> Sweep:
    logits = to_logits_(wide_scores(hidden, weight), rule)
    steep = slope(logits, rule) if matrix is not None and sloped else None
    top = logits.amax(-1, keepdim=True)
    below = logits.sub_(top)
    own = pick(below, tokens)
    mass = below.exp()
    total = mass.sum(-1)
    log_total = total.log()
    mean_below = below.mul_(mass).sum(-1) / total
    projection = None
    if matrix is not None:
        scores = hidden.to(matrix.dtype) @ matrix.T if matrix.dtype != hidden.dtype else wide_scores(hidden, matrix)
        if steep is not None:
            scores.mul_(steep)
        projection = pick(scores, tokens) - scores.mul_(mass).sum(-1) / total
    squared_mass = mass.square_().sum(-1) / total.square()
    return Sweep(own - log_total, log_total - mean_below, squared_mass, top.squeeze(-1) + log_total, projection)


def sweep(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    rule: HeadRule,
    *,
    buffer_bytes: int,
    matrix: Float[Tensor, "vocab hid"] | None = None,
    sloped: bool = False,
) -> Sweep:
    """All statistics of the tokens in one pass over the head; with `matrix` also (e_y - p)' M h."""
    dtype = wide(hidden.dtype)
    out = hidden.new_empty(4 if matrix is None else 5, len(hidden), dtype=dtype)
    rows = max(1, buffer_bytes // (ARRAYS * len(weight) * out.element_size()))
    for run in runs(len(hidden), rows):
        part = _sweep_rows(hidden[run], weight, tokens[run], rule, matrix, sloped)
        for row, value in zip(out, part, strict=False):
            if value is not None:
                row[run] = value
    return Sweep(out[0], out[1], out[2], out[3], None if matrix is None else out[4])


def error_dtype(hidden: Tensor) -> torch.dtype:
    """Half precision on an accelerator, which multiplies in it."""
    return hidden.dtype if hidden.is_cuda and is_half(hidden.dtype) else wide(hidden.dtype)


def error_bytes(hidden: Tensor) -> int:
    """Bytes that `write_errors` needs for each logit of a block."""
    return 3 * wide(hidden.dtype).itemsize + error_dtype(hidden).itemsize


def write_errors(
    out: Float[Tensor, "tok run"],
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "run hid"],
    tokens: Int[Tensor, " tok"],
    log_normaliser: Float[Tensor, " tok"],
    share: Float[Tensor, " tok"],
    rule: HeadRule,
    *,
    sloped: bool,
    remainder: Float[Tensor, "tok run"] | None = None,
) -> None:
    """share_t (e_y - p) over a run of the vocabulary, whose start `tokens` count from; with `sloped` times d logit / d (h W').

    `remainder` takes the digits that `out` has no room for.
    """
    logits = to_logits_(wide_scores(hidden, weight), rule)
    steep = slope(logits, rule) if sloped else None
    error = logits.sub_(log_normaliser[:, None]).exp_().mul_(-share[:, None])
    within = (tokens >= 0) & (tokens < len(weight))
    error.scatter_add_(1, tokens.clamp(0, len(weight) - 1)[:, None], (share * within)[:, None])
    if steep is not None:
        error.mul_(steep)
    out.copy_(error)
    if remainder is not None:
        remainder.copy_(error.sub_(out))

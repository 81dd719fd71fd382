"""The two products of the errors G_tv = share_t (e_y - p)_v: G' hidden and G weight, a block of G at a time."""

from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.kernels.lm_head.blocks import blocks_for, runs
from tokencredit.kernels.lm_head.precision import add_product_, wide
from tokencredit.kernels.lm_head.rule import HeadRule


def error_products(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    log_normaliser: Float[Tensor, " tok"],
    share: Float[Tensor, " tok"],
    rule: HeadRule,
    *,
    way: ModuleType,
    sloped: bool,
    by_hidden: bool,
    by_weight: bool,
    remainders: bool,
    buffer_bytes: int,
) -> tuple[Float[Tensor, "tok hid"] | None, Float[Tensor, "vocab hid"] | None]:
    """G weight and G' hidden, those that are asked for, in float32 (float64); `way` knows how a block of G is written.

    In half precision G is rounded to it, which gradients bear; with `remainders` what it lost is multiplied too.
    """
    dtype, half = wide(hidden.dtype), way.error_dtype(hidden)
    # Shares of 1e-6 would be lost in float16, whose smallest normal number is 6e-5.
    unit = share.abs().amax().clamp(min=torch.finfo(dtype).tiny) if half == torch.float16 and len(share) else None
    if unit is not None:
        share = share / unit
    allocate = torch.empty if len(hidden) else torch.zeros
    hidden_part = allocate(hidden.shape, dtype=dtype, device=hidden.device) if by_hidden else None
    weight_part = allocate(weight.shape, dtype=dtype, device=hidden.device) if by_weight else None
    digits = 2 if remainders and half != dtype else 1
    block = blocks_for(len(hidden), len(weight), way.error_bytes(hidden) + (digits - 1) * half.itemsize, buffer_bytes)
    # Rows of whole 32 bytes, which copies and products on a GPU ask for.
    buffer = torch.empty(digits, block.tokens, -(-block.vocab // 16) * 16, dtype=half, device=hidden.device)
    for rows in runs(len(hidden), block.tokens):
        for columns in runs(len(weight), block.vocab):
            errors, *rest = buffer[:, : rows.stop - rows.start, : columns.stop - columns.start].unbind()
            given = hidden[rows], weight[columns], tokens[rows] - columns.start, log_normaliser[rows], share[rows]
            way.write_errors(errors, *given, rule, sloped=sloped, remainder=rest[0] if rest else None)
            for number, part in enumerate((errors, *rest)):
                if weight_part is not None:
                    add_product_(weight_part[columns], part.T, hidden[rows], first=rows.start == number == 0)
                if hidden_part is not None:
                    add_product_(hidden_part[rows], part, weight[columns], first=columns.start == number == 0)
    for part in (hidden_part, weight_part):
        if part is not None and unit is not None:
            part.mul_(unit)
    return hidden_part, weight_part

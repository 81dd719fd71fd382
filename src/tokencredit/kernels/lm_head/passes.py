"""Passes over the LM head that never hold [tok, vocab]: log-prob, entropy, sum of p^2, and sums and products of the errors (e_y - p).

`tokens` must be ids of the vocabulary. Products use `hidden`'s dtype (or autocast's), to which the weight is cast; all sums and results
are float32 (float64 for float64). `buffer_bytes` bounds the temporary memory of a pass. Backends: `plain` materialises all logits,
`chunked` is torch in blocks, `triton` needs a GPU; `auto` selects `triton` for half precision where it can run.
"""

from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokencredit.kernels import triton_unavailable_reason
from tokencredit.kernels.lm_head import chunked, reference
from tokencredit.kernels.lm_head.precision import add_product_, compute_dtype, is_half, wide
from tokencredit.kernels.lm_head.rule import BUFFER_BYTES, DEFAULT_RULE, HeadRule, HeadStatistics, blocks_for, check_rule, runs, to_logits_


def error_products(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    log_normaliser: Float[Tensor, " tok"],
    share: Float[Tensor, " tok"],
    rule: HeadRule,
    *,
    backend_module: ModuleType,
    sloped: bool,
    by_hidden: bool,
    by_weight: bool,
    remainders: bool,
    buffer_bytes: int,
) -> tuple[Float[Tensor, "tok hid"] | None, Float[Tensor, "vocab hid"] | None]:
    """G weight and G' hidden, as requested, in float32 (float64), one block of G_tv = share_t (e_y - p)_v at a time.

    In half precision G is rounded to it, which gradients bear; with `remainders` what it lost is multiplied too.
    """
    dtype, half = wide(hidden.dtype), backend_module.error_dtype(hidden)
    # Shares of 1e-6 would underflow in float16, whose smallest normal number is 6e-5.
    unit = share.abs().amax().clamp(min=torch.finfo(dtype).tiny) if half == torch.float16 and len(share) else None
    if unit is not None:
        share = share / unit
    allocate = torch.empty if len(hidden) else torch.zeros
    hidden_part = allocate(hidden.shape, dtype=dtype, device=hidden.device) if by_hidden else None
    weight_part = allocate(weight.shape, dtype=dtype, device=hidden.device) if by_weight else None
    digits = 2 if remainders and half != dtype else 1
    block = blocks_for(len(hidden), len(weight), backend_module.error_bytes(hidden) + (digits - 1) * half.itemsize, buffer_bytes)
    # Rows are multiples of 32 bytes, which copies and products on a GPU require.
    buffer = torch.empty(digits, block.tokens, -(-block.vocab // 16) * 16, dtype=half, device=hidden.device)
    for rows in runs(len(hidden), block.tokens):
        for columns in runs(len(weight), block.vocab):
            errors, *rest = buffer[:, : rows.stop - rows.start, : columns.stop - columns.start].unbind()
            given = hidden[rows], weight[columns], tokens[rows] - columns.start, log_normaliser[rows], share[rows]
            backend_module.write_errors(errors, *given, rule, sloped=sloped, remainder=rest[0] if rest else None)
            for number, part in enumerate((errors, *rest)):
                if weight_part is not None:
                    add_product_(weight_part[columns], part.T, hidden[rows], first=rows.start == number == 0)
                if hidden_part is not None:
                    add_product_(hidden_part[rows], part, weight[columns], first=columns.start == number == 0)
    for part in (hidden_part, weight_part):
        if part is not None and unit is not None:
            part.mul_(unit)
    return hidden_part, weight_part


Backend = Literal["auto", "plain", "chunked", "triton"]


def _backend_module(backend: Backend, hidden: Tensor, dtype: torch.dtype) -> ModuleType:
    if backend == "auto":
        backend = "triton" if hidden.is_cuda and is_half(dtype) and triton_unavailable_reason() is None else "chunked"
    if backend == "triton":
        return import_module("tokencredit.kernels.lm_head.triton_launch")
    if backend == "chunked":
        return chunked
    raise ValueError(f"backend must be auto, plain, chunked or triton, got {backend!r}")


def _check(hidden: Tensor, weight: Tensor, tokens: Tensor, rule: HeadRule) -> None:
    check_rule(rule)
    if hidden.ndim != 2 or weight.ndim != 2 or tokens.ndim != 1:
        raise ValueError(f"hidden, weight and tokens must have 2, 2 and 1 axes, got {hidden.ndim}, {weight.ndim} and {tokens.ndim}")
    if hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden has width {hidden.shape[1]}, weight {weight.shape[1]}")
    if len(hidden) != len(tokens):
        raise ValueError(f"{len(hidden)} hidden states for {len(tokens)} tokens")


class _HeadLogp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, rule: HeadRule, backend: Backend, buffer_bytes: int) -> Any:
        ctx.dtype = compute_dtype(hidden)
        ctx.rule, ctx.buffer_bytes, ctx.backend_module = rule, buffer_bytes, _backend_module(backend, hidden, ctx.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            found = ctx.backend_module.sweep(hidden.to(ctx.dtype), weight.to(ctx.dtype), tokens, rule, buffer_bytes=buffer_bytes)
        ctx.save_for_backward(hidden, weight, tokens, found.log_normaliser)
        ctx.mark_non_differentiable(found.entropy, found.squared_mass)
        # A copy: autograd does not allow in-place changes of a view.
        return found.logp.clone(), found.entropy, found.squared_mass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        share = gradients[0]
        hidden, weight, tokens, log_normaliser = ctx.saved_tensors
        by_hidden, by_weight = ctx.needs_input_grad[:2]
        with torch.autocast(hidden.device.type, enabled=False):
            hidden_part, weight_part = error_products(
                hidden.to(ctx.dtype),
                weight.to(ctx.dtype),
                tokens,
                log_normaliser,
                share,
                ctx.rule,
                backend_module=ctx.backend_module,
                sloped=True,
                by_hidden=by_hidden,
                by_weight=by_weight,
                remainders=False,
                buffer_bytes=ctx.buffer_bytes,
            )
        return (
            None if hidden_part is None else hidden_part.to(hidden.dtype),
            None if weight_part is None else weight_part.to(weight.dtype),
            *(None,) * 4,
        )


def head_statistics(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    rule: HeadRule = DEFAULT_RULE,
    *,
    backend: Backend = "auto",
    buffer_bytes: int = BUFFER_BYTES,
) -> HeadStatistics:
    """Log-prob of each token, and entropy and sum of p^2 of the distribution it was drawn from.

    Only `logp` has a gradient, by hidden and weight and in their own dtypes; it is computed anew by the block.
    """
    _check(hidden, weight, tokens, rule)
    if backend == "plain":
        return reference.statistics(hidden, weight, tokens, rule)
    return HeadStatistics(*_HeadLogp.apply(hidden, weight, tokens, rule, backend, buffer_bytes))


def _log_normaliser(
    hidden: Tensor, weight: Tensor, tokens: Tensor, rule: HeadRule, logp: Tensor | None, backend_module: ModuleType, buffer_bytes: int
) -> Tensor:
    if logp is None:
        return backend_module.sweep(hidden, weight, tokens, rule, buffer_bytes=buffer_bytes).log_normaliser
    dtype = wide(hidden.dtype)
    own = torch.linalg.vecdot(hidden.to(dtype), weight[tokens].to(dtype))
    return to_logits_(own, rule) - logp.to(dtype)


def _products(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    share: Tensor,
    rule: HeadRule,
    logp: Tensor | None,
    sloped: bool,
    backend: Backend,
    buffer_bytes: int,
    *,
    by_hidden: bool,
) -> Tensor:
    dtype = compute_dtype(hidden)
    backend_module = _backend_module(backend, hidden, dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        log_normaliser = _log_normaliser(hidden, weight, tokens, rule, logp, backend_module, buffer_bytes)
        share = share.to(wide(dtype))
        hidden_part, weight_part = error_products(
            hidden,
            weight,
            tokens,
            log_normaliser,
            share,
            rule,
            backend_module=backend_module,
            sloped=sloped,
            by_hidden=by_hidden,
            by_weight=not by_hidden,
            remainders=True,
            buffer_bytes=buffer_bytes,
        )
    part = hidden_part if by_hidden else weight_part
    assert part is not None
    return part


@torch.no_grad()
def head_weight_sum(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    share: Float[Tensor, " tok"],
    rule: HeadRule = DEFAULT_RULE,
    *,
    logp: Float[Tensor, " tok"] | None = None,
    sloped: bool = False,
    backend: Backend = "auto",
    buffer_bytes: int = BUFFER_BYTES,
) -> Float[Tensor, "vocab hid"]:
    """sum_t share_t (e_y - p) x h, p by the rule: DelTA's exact vectors, which leave the 1 / temperature out.

    With `sloped`, (e_y - p) is multiplied by d logit / d (h W'), which makes it sum_t share_t d logp_t / d W to the letter.
    `logp` of the tokens under the same head and rule, where it is known, spares one of three products (of four in half precision,
    whose rounding of (e_y - p) is made up for by one more).
    """
    _check(hidden, weight, tokens, rule)
    if backend == "plain":
        return reference.weight_sum(hidden, weight, tokens, share, rule, sloped)
    return _products(hidden, weight, tokens, share, rule, logp, sloped, backend, buffer_bytes, by_hidden=False)


@torch.no_grad()
def head_hidden_gradient(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    rule: HeadRule = DEFAULT_RULE,
    *,
    logp: Float[Tensor, " tok"] | None = None,
    sloped: bool = False,
    backend: Backend = "auto",
    buffer_bytes: int = BUFFER_BYTES,
) -> Float[Tensor, "tok hid"]:
    """W_y - sum_v p_v W_v over the whole vocabulary; with `sloped`, d logp / d h to the letter. `logp` as in `head_weight_sum`."""
    _check(hidden, weight, tokens, rule)
    if backend == "plain":
        return reference.hidden_gradient(hidden, weight, tokens, rule, sloped)
    ones = hidden.new_ones(len(hidden), dtype=wide(hidden.dtype))
    return _products(hidden, weight, tokens, ones, rule, logp, sloped, backend, buffer_bytes, by_hidden=True)


@torch.no_grad()
def head_projection(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    matrix: Float[Tensor, "vocab hid"],
    rule: HeadRule = DEFAULT_RULE,
    *,
    sloped: bool = False,
    backend: Backend = "auto",
    buffer_bytes: int = BUFFER_BYTES,
) -> Float[Tensor, " tok"]:
    """(e_y - p)' M h for every token: <v_t, M> for the vectors that `head_weight_sum` sums.

    M counts with the digits it comes with: one of float32 beside half-precision hidden states takes one product more than one of theirs.
    """
    _check(hidden, weight, tokens, rule)
    if matrix.shape != weight.shape:
        raise ValueError(f"matrix must have the weight's shape {tuple(weight.shape)}, got {tuple(matrix.shape)}")
    if backend == "plain":
        return reference.projection(hidden, weight, tokens, matrix, rule, sloped)
    dtype = compute_dtype(hidden)
    backend_module = _backend_module(backend, hidden, dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        matrix = matrix if is_half(dtype) and matrix.dtype == torch.float32 else matrix.to(dtype)
        return backend_module.sweep(hidden, weight, tokens, rule, buffer_bytes=buffer_bytes, matrix=matrix, sloped=sloped).projection

"""Credit methods that keep or drop a token's advantage: uniform, one-sided, negative token filtering, forking tokens, edit mask."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage


def uniform_credit(inputs: CreditInputs, state: State) -> CreditOutcome:
    """c_it = 1: every token receives its response's advantage, as in GRPO and DAPO."""
    return scale_advantage(torch.ones_like(inputs.logp), inputs, state)


Side = Literal["positive", "negative"]


def one_sided_credit(inputs: CreditInputs, state: State, *, side: Side = "positive") -> CreditOutcome:
    """c_it = 1 where A_i has the sign of `side`, else 0; a control in which nothing can cancel. A_i = 0 is on neither side."""
    if side not in get_args(Side):
        raise ValueError(f"side is {side!r}; it must be one of {', '.join(get_args(Side))}")
    credited = inputs.advantage > 0 if side == "positive" else inputs.advantage < 0
    return scale_advantage(credited[:, None].expand_as(inputs.mask).to(inputs.advantage.dtype), inputs, state)


SLACK = 1e-12
"""Relative slack: in float64 0.1 x 30 is slightly above 3, and without it would round up to 4."""


def kept_tokens(available: Int[Tensor, "*shape"], *, keep: float) -> Int[Tensor, "*shape"]:
    """ceil(keep x available)."""
    if not 0 < keep <= 1:
        raise ValueError(f"keep is {keep}; it must be a share above 0 and at most 1")
    return (available.double() * keep * (1 - SLACK)).ceil().long()


def least_probable(inputs: CreditInputs, *, keep: float) -> Bool[Tensor, "seq tok"]:
    """The ceil(keep x T_i) least probable tokens of every response; among equally probable tokens the earlier one."""
    order = inputs.logp.where(inputs.mask, torch.inf).argsort(dim=-1, stable=True)
    rank = torch.arange(order.shape[-1], device=order.device)
    return torch.zeros_like(inputs.mask).scatter(-1, order, rank < kept_tokens(inputs.mask.sum(-1), keep=keep)[:, None])


def ntf_credit(inputs: CreditInputs, state: State, *, keep: float = 0.1) -> CreditOutcome:
    """Negative token filtering (2606.17250): c_it = 1 where A_i >= 0 or t is among the ceil(keep x T_i) least probable tokens of i.

    Elsewhere 0. T_i counts the mask's tokens; among equally probable tokens the earlier one is kept. The loss denominator still
    counts dropped tokens.
    """
    kept = least_probable(inputs, keep=keep) | (inputs.advantage >= 0)[:, None]
    return scale_advantage(kept.to(inputs.advantage.dtype), inputs, state)


Divisor = Literal["all", "kept"]


def forking_credit(inputs: CreditInputs, state: State, *, keep: float = 0.2, divisor: Divisor = "all") -> CreditOutcome:
    """80/20 forking tokens (2506.01939): c_it = 1 for the ceil(keep x N) tokens of highest entropy in the batch, else 0.

    With divisor "kept" c_it is N / (number of kept tokens) instead of 1. N counts the mask's tokens; among equal entropies the
    earlier response and then the earlier token is kept.
    """
    if divisor not in get_args(Divisor):
        raise ValueError(f"divisor is {divisor!r}; it must be one of {', '.join(get_args(Divisor))}")
    order = inputs.entropy.where(inputs.mask, -torch.inf).flatten().argsort(descending=True, stable=True)
    available = inputs.mask.sum()
    count = int(kept_tokens(available, keep=keep))
    kept = torch.zeros_like(inputs.mask).flatten().index_fill(0, order[:count], True).view_as(inputs.mask)
    weight = int(available) / count if divisor == "kept" and count else 1.0
    return scale_advantage(weight * kept.to(inputs.advantage.dtype), inputs, state)


def edit_mask_credit(inputs: CreditInputs, state: State, *, unchanged: float = 0.0) -> CreditOutcome:
    """IBPO's edit mask (2605.16302): c_it = 1 where a successful revision changed the token, else `unchanged`.

    In a response without a successful revision every token has c_it = 1.
    """
    if inputs.edited is None:
        raise ValueError("edited is missing; the edit mask needs revisions of the failed responses")
    return scale_advantage(inputs.edited.to(inputs.advantage.dtype).where(inputs.edited, unchanged), inputs, state)

"""Uniform: every token of a response receives the response's advantage. What GRPO and DAPO do.

One side only: a control in which nothing can cancel.

Negative token filtering: of a response with negative advantage only the least probable tokens are penalised (2606.17250).

80/20 forking tokens: credit only where the policy was least decided (2506.01939).

IBPO's mask: a repaired failure is blamed only where the repair changed it (2605.16302).
"""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage


def uniform_credit(inputs: CreditInputs, state: State) -> CreditOutcome:
    """c_it = 1."""
    return scale_advantage(torch.ones_like(inputs.logp), inputs, state)


Side = Literal["positive", "negative"]


def one_sided_credit(inputs: CreditInputs, state: State, *, side: Side = "positive") -> CreditOutcome:
    """c_it = 1 where A_i has the sign of `side`, else 0; A_i = 0 lies on neither side."""
    if side not in get_args(Side):
        raise ValueError(f"side is {side!r}; it must be one of {', '.join(get_args(Side))}")
    credited = inputs.advantage > 0 if side == "positive" else inputs.advantage < 0
    return scale_advantage(credited[:, None].expand_as(inputs.mask).to(inputs.advantage.dtype), inputs, state)


SLACK = 1e-12
"""In float64 0.1 x 30 lies a rounding above 3, and would round up to 4."""


def kept_tokens(available: Int[Tensor, "*shape"], *, keep: float) -> Int[Tensor, "*shape"]:
    """ceil(keep x available)."""
    if not 0 < keep <= 1:
        raise ValueError(f"keep is {keep}; it must be a share above 0 and at most 1")
    return (available.double() * keep * (1 - SLACK)).ceil().long()


def least_probable(inputs: CreditInputs, *, keep: float) -> Bool[Tensor, "seq tok"]:
    """The ceil(keep x T_i) least probable tokens of every response; of equally probable tokens the earlier one."""
    order = inputs.logp.where(inputs.mask, torch.inf).argsort(dim=-1, stable=True)
    place = torch.arange(order.shape[-1], device=order.device)
    return torch.zeros_like(inputs.mask).scatter(-1, order, place < kept_tokens(inputs.mask.sum(-1), keep=keep)[:, None])


def ntf_credit(inputs: CreditInputs, state: State, *, keep: float = 0.1) -> CreditOutcome:
    """c_it = 1 where A_i >= 0 or t is among the ceil(keep x T_i) least probable tokens of i, else 0.

    T_i counts the mask's tokens; of equally probable tokens the earlier one stays. Dropped tokens count in every divisor.
    """
    kept = least_probable(inputs, keep=keep) | (inputs.advantage >= 0)[:, None]
    return scale_advantage(kept.to(inputs.advantage.dtype), inputs, state)


Divisor = Literal["all", "kept"]


def forking_credit(inputs: CreditInputs, state: State, *, keep: float = 0.2, divisor: Divisor = "all") -> CreditOutcome:
    """c_it = 1 for the ceil(keep x N) tokens of highest entropy in the batch, else 0; divisor "kept" makes the 1 an N / kept.

    N counts the mask's tokens; of equal entropies the earlier row and then the earlier token stays.
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
    """c_it = 1 where a successful revision changed the token, else `unchanged`; responses without a revision count as changed."""
    if inputs.edited is None:
        raise ValueError("edited is missing; the edit mask needs revisions of the failed responses")
    return scale_advantage(inputs.edited.to(inputs.advantage.dtype).where(inputs.edited, unchanged), inputs, state)

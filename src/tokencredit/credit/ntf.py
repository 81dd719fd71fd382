"""Negative token filtering: of a response with negative advantage only the least probable tokens are penalised (2606.17250)."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage

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

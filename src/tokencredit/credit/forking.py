"""80/20 forking tokens: credit only where the policy was least decided (2506.01939)."""

from typing import Literal, get_args

import torch

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage
from tokencredit.credit.ntf import kept_tokens

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

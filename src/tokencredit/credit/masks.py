"""Uniform: every token of a response receives the response's advantage. What GRPO and DAPO do."""

import torch

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage


def uniform_credit(inputs: CreditInputs, state: State) -> CreditOutcome:
    """c_it = 1."""
    return scale_advantage(torch.ones_like(inputs.logp), inputs, state)

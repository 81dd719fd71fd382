"""SAPO (Soft Adaptive Policy Optimization, 2511.20347): a soft gate on the ratio instead of a clip."""

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs
from tokencredit.objective.ratio import importance_ratio


def sapo_surrogate(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    tau_positive: float,
    tau_negative: float,
) -> Float[Tensor, "*shape"]:
    """(4 / tau) sigmoid(tau (rho - 1)) a, to be maximised; tau = tau_positive where a > 0, else tau_negative. Not reduced.

    The gradient by log-prob is rho sech^2(tau (rho - 1) / 2) a: the credit at rho = 1, fading on both sides.
    """
    credit = credit.detach()
    tau = torch.full_like(credit, tau_negative).masked_fill(credit > 0, tau_positive)
    return 4 / tau * (tau * (importance_ratio(logp, old_logp.detach()) - 1)).sigmoid() * credit


def sapo(*, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Objective:
    """The negative surrogate as a loss."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -sapo_surrogate(inputs.logp, inputs.old_logp, inputs.credit, tau_positive=tau_positive, tau_negative=tau_negative)

    return Objective(token_loss=token_loss, silent_without_credit=True)

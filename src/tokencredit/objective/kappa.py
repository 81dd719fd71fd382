"""kappa = dJ / d logp, one number per token: engines backpropagate it through the model, and the audit inspects it."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.masked import masked_sum
from tokencredit.objective.base import Objective, TokenInputs


class Kappa(NamedTuple):
    kappa: Float[Tensor, "seq tok"]
    """Gradient of the loss by each token's log-prob; 0 outside the mask."""
    loss: Float[Tensor, ""]
    """On the device; reading its value waits for the device."""


def token_kappa(
    objective: Objective, inputs: TokenInputs, statistic: Any, weight: Float[Tensor, "seq tok"], *, denominator: float
) -> Kappa:
    """Differentiate sum(weight x token loss) / denominator by log-prob alone; no model is involved."""
    with torch.enable_grad():
        leaf = inputs.logp.detach().requires_grad_()
        token_loss = objective.token_loss(inputs._replace(logp=leaf), statistic)
        # A scalar loss was already averaged by the objective.
        loss = masked_sum(weight * token_loss, inputs.mask) / denominator if token_loss.dim() else token_loss
        # An objective may cut every token to no gradient; then the loss does not depend on the log-probs.
        kappa = torch.autograd.grad(loss, leaf, materialize_grads=True)[0] if loss.requires_grad else torch.zeros_like(leaf)
    return Kappa(kappa, loss.detach())

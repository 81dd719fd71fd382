"""kappa = dJ/d logp, the one number an objective gives a token: what engines send back through the model and audits inspect."""

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
    """A number on the device: whoever reads it waits for it."""


def token_kappa(
    objective: Objective, inputs: TokenInputs, statistic: Any, weight: Float[Tensor, "seq tok"], *, denominator: float
) -> Kappa:
    """Differentiate sum(weight x token loss) / denominator by log-prob alone; no model is involved."""
    with torch.enable_grad():
        leaf = inputs.logp.detach().requires_grad_()
        token_loss = objective.token_loss(inputs._replace(logp=leaf), statistic)
        # One number instead of one per token has been averaged by the objective itself.
        loss = masked_sum(weight * token_loss, inputs.mask) / denominator if token_loss.dim() else token_loss
        # An objective may silence every token it is given; then the loss does not depend on the log-probs at all.
        kappa = torch.autograd.grad(loss, leaf, materialize_grads=True)[0] if loss.requires_grad else torch.zeros_like(leaf)
    return Kappa(kappa, loss.detach())

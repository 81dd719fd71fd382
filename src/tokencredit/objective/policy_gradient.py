"""Plain policy gradient: log-prob times credit, no ratio and no clip."""

from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs


def policy_gradient_surrogate(logp: Float[Tensor, "*shape"], credit: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Credit times log-prob, to be maximised; not reduced. Its gradient by log-prob is the credit, its value means nothing."""
    return credit.detach() * logp


def policy_gradient() -> Objective:
    """The negative surrogate as a loss."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -policy_gradient_surrogate(inputs.logp, inputs.credit)

    return Objective(token_loss=token_loss, silent_without_credit=True)

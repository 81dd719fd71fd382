"""CISPO (MiniMax-M1, 2506.13585): the clipped ratio weighs the policy gradient, so that no token loses its gradient."""

from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs
from tokencredit.objective.ratio import importance_ratio


def cispo_surrogate(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "*shape"]:
    """sg[clip(rho, 1 - clip_low, 1 + clip_high)] a logp, to be maximised; not reduced.

    Gradient flows through the last `logp` alone and is the clipped ratio times the credit. `clip_low` 1: no lower bound.
    """
    weight = importance_ratio(logp, old_logp).clamp(1 - clip_low, 1 + clip_high)
    return (weight * credit).detach() * logp


def cispo(*, clip_low: float = 1.0, clip_high: float = 4.0) -> Objective:
    """The negative surrogate as a loss."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -cispo_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clip_low=clip_low, clip_high=clip_high)

    return Objective(token_loss=token_loss, silent_without_credit=True)

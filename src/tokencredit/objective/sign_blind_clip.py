"""Clipping that does not look at the sign of credit: a reading of GRPO-fix (2604.13088 v1), whose definition is not published."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs
from tokencredit.objective.ratio import importance_ratio

Clipping = Literal["sign-blind", "none"]


def sign_blind_surrogate(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    clipping: Clipping = "sign-blind",
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "*shape"]:
    """clip(rho, 1 - clip_low, 1 + clip_high) a, to be maximised; `none`: rho a. Not reduced.

    Outside the band a token gives no gradient whatever its sign, so equal tokens with opposite credit cancel.
    """
    if clipping not in ("sign-blind", "none"):
        raise ValueError(f"clipping is {clipping!r}; it must be sign-blind or none")
    ratio = importance_ratio(logp, old_logp.detach())
    return (ratio if clipping == "none" else ratio.clamp(1 - clip_low, 1 + clip_high)) * credit.detach()


def sign_blind_clip(*, clipping: Clipping = "sign-blind", clip_low: float = 0.2, clip_high: float = 0.2) -> Objective:
    """The negative sign-blind surrogate as a loss."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -sign_blind_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clipping=clipping, clip_low=clip_low, clip_high=clip_high)

    return Objective(token_loss=token_loss, silent_without_credit=True)

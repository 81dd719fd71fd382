"""PPO's clipped surrogate per token: equal widths are GRPO's, a wider upper side and a dual clip are DAPO's (2503.14476)."""

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs
from tokencredit.objective.ratio import importance_ratio


def clipped_surrogate(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Tensor, "*shape"]:
    """min(rho a, clip(rho, 1 - clip_low, 1 + clip_high) a), to be maximised; not reduced.

    `dual_clip` c > 1 bounds the loss of a token with negative credit from above: the surrogate is at least c a.
    Gradient flows through `logp` alone.
    """
    old_logp, credit = old_logp.detach(), credit.detach()
    ratio = importance_ratio(logp, old_logp)
    surrogate = torch.minimum(ratio * credit, ratio.clamp(1 - clip_low, 1 + clip_high) * credit)
    if dual_clip is None:
        return surrogate
    return torch.where(credit < 0, torch.maximum(surrogate, dual_clip * credit), surrogate)


def ppo_clip(*, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None) -> Objective:
    """The negative clipped surrogate as a loss."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -clipped_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)

    return Objective(token_loss=token_loss, silent_without_credit=True)

"""Objectives whose loss of a token depends on that token alone: PPO clip, sign-blind clip, policy gradient, CISPO, SAPO."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs, importance_ratio


def clipped_surrogate(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Tensor, "*shape"]:
    """PPO's clipped surrogate min(rho a, clip(rho, 1 - clip_low, 1 + clip_high) a), to be maximised; not reduced.

    Equal clip widths are GRPO's; a wider upper one and the dual clip are DAPO's (2503.14476). `dual_clip` c > 1 bounds the loss of a
    token with negative credit from above: the surrogate is at least c a. Gradient flows only through `logp`.
    """
    old_logp, credit = old_logp.detach(), credit.detach()
    ratio = importance_ratio(logp, old_logp)
    surrogate = torch.minimum(ratio * credit, ratio.clamp(1 - clip_low, 1 + clip_high) * credit)
    if dual_clip is None:
        return surrogate
    return torch.where(credit < 0, torch.maximum(surrogate, dual_clip * credit), surrogate)


def ppo_clip(*, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None) -> Objective:
    """PPO clip: minus `clipped_surrogate`."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -clipped_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)

    return Objective(token_loss=token_loss, silent_without_credit=True)


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
    """clip(rho, 1 - clip_low, 1 + clip_high) a, or rho a with clipping "none"; to be maximised, not reduced.

    Our reading of GRPO-fix (2604.13088 v1), whose definition is not published. Outside the clip range a token has no gradient for
    either sign of credit, so equal tokens with opposite credit cancel.
    """
    if clipping not in ("sign-blind", "none"):
        raise ValueError(f"clipping is {clipping!r}; it must be sign-blind or none")
    ratio = importance_ratio(logp, old_logp.detach())
    return (ratio if clipping == "none" else ratio.clamp(1 - clip_low, 1 + clip_high)) * credit.detach()


def sign_blind_clip(*, clipping: Clipping = "sign-blind", clip_low: float = 0.2, clip_high: float = 0.2) -> Objective:
    """Sign-blind clip: minus `sign_blind_surrogate`."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -sign_blind_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clipping=clipping, clip_low=clip_low, clip_high=clip_high)

    return Objective(token_loss=token_loss, silent_without_credit=True)


def policy_gradient_surrogate(logp: Float[Tensor, "*shape"], credit: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """A logp, to be maximised; not reduced. No ratio and no clip: the gradient by log-prob is the credit; the value has no meaning."""
    return credit.detach() * logp


def policy_gradient() -> Objective:
    """Plain policy gradient: minus `policy_gradient_surrogate`."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -policy_gradient_surrogate(inputs.logp, inputs.credit)

    return Objective(token_loss=token_loss, silent_without_credit=True)


def cispo_surrogate(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "*shape"]:
    """CISPO (MiniMax-M1, 2506.13585): sg[clip(rho, 1 - clip_low, 1 + clip_high)] a logp, to be maximised; not reduced.

    The clipped ratio weighs the policy gradient, so that no token loses its gradient, which is the clipped ratio times the credit.
    `clip_low` 1 means no lower bound.
    """
    weight = importance_ratio(logp, old_logp).clamp(1 - clip_low, 1 + clip_high)
    return (weight * credit).detach() * logp


def cispo(*, clip_low: float = 1.0, clip_high: float = 4.0) -> Objective:
    """CISPO: minus `cispo_surrogate`."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -cispo_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clip_low=clip_low, clip_high=clip_high)

    return Objective(token_loss=token_loss, silent_without_credit=True)


def sapo_surrogate(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    tau_positive: float,
    tau_negative: float,
) -> Float[Tensor, "*shape"]:
    """SAPO (Soft Adaptive Policy Optimization, 2511.20347): (4 / tau) sigmoid(tau (rho - 1)) a, to be maximised; not reduced.

    A soft gate on the ratio instead of a clip; tau = tau_positive where a > 0, else tau_negative. The gradient by log-prob is
    rho sech^2(tau (rho - 1) / 2) a: the credit at rho = 1, fading on both sides.
    """
    credit = credit.detach()
    tau = torch.full_like(credit, tau_negative).masked_fill(credit > 0, tau_positive)
    return 4 / tau * (tau * (importance_ratio(logp, old_logp.detach()) - 1)).sigmoid() * credit


def sapo(*, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Objective:
    """SAPO: minus `sapo_surrogate`."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -sapo_surrogate(inputs.logp, inputs.old_logp, inputs.credit, tau_positive=tau_positive, tau_negative=tau_negative)

    return Objective(token_loss=token_loss, silent_without_credit=True)

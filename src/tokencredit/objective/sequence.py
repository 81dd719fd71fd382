"""Objectives with one importance ratio per response: GSPO and GMPO."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.masked import response_mean
from tokencredit.objective.base import LOG_RATIO_LIMIT, Objective, TokenInputs, importance_ratio

SequenceForm = Literal["token", "sequence"]


def check_form(form: str) -> None:
    if form not in ("token", "sequence"):
        raise ValueError(f"form is {form!r}; it must be token or sequence")


def gspo_surrogate(
    logp: Float[Tensor, "seq tok"],
    old_logp: Float[Tensor, "seq tok"],
    credit: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    clip_low: float,
    clip_high: float,
    form: SequenceForm = "token",
) -> Float[Tensor, "seq tok"]:
    """GSPO (2507.18071): min(s a, clip(s, 1 - clip_low, 1 + clip_high) a), s_i = exp(mean_t(logp - old_logp)); not reduced.

    To be maximised; s_i is the geometric mean of the token ratios. Form "token": s = sg[s_i] exp(logp - sg[logp]), so that a token's
    gradient is that of its own credit. Form "sequence": s = s_i, whose gradient is spread evenly over the response, which averages
    token credit away. The mean log-ratio is clamped to +-20.
    """
    check_form(form)
    old_logp, credit = old_logp.detach(), credit.detach()
    log_ratio = response_mean(logp - old_logp, mask)
    if form == "token":
        log_ratio = log_ratio.detach() + (logp - logp.detach())
    ratio = importance_ratio(log_ratio, torch.zeros_like(log_ratio)).expand_as(logp)
    return torch.minimum(ratio * credit, ratio.clamp(1 - clip_low, 1 + clip_high) * credit)


def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4, form: SequenceForm = "token") -> Objective:
    """GSPO: minus `gspo_surrogate`."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -gspo_surrogate(inputs.logp, inputs.old_logp, inputs.credit, inputs.mask, clip_low=clip_low, clip_high=clip_high, form=form)

    # In the sequence form a token without credit still moves the ratio that multiplies the other tokens' credit.
    return Objective(token_loss=token_loss, silent_without_credit=form == "token")


def clipped_log_ratio(
    logp: Float[Tensor, "*shape"],
    old_logp: Float[Tensor, "*shape"],
    credit: Float[Tensor, "*shape"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "*shape"]:
    """c_it: log rho, at most clip_high where a > 0, at least -clip_low where a < 0, and 0 where a = 0 (as in public code)."""
    log_ratio = (logp - old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    clipped = torch.where(credit > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))
    return clipped.where(credit != 0, 0.0)


def gmpo_surrogate(
    logp: Float[Tensor, "seq tok"],
    old_logp: Float[Tensor, "seq tok"],
    credit: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    clip_low: float,
    clip_high: float,
    form: SequenceForm = "token",
) -> Float[Tensor, "seq tok"]:
    """GMPO (Geometric-Mean Policy Optimization, 2507.20673): sg[r_i] exp(c_it - sg[c_it]) a, r_i = exp(mean_t c_it); not reduced.

    To be maximised; c_it is `clipped_log_ratio`, so every token ratio is clipped before the geometric mean. Form "sequence": r_i a,
    whose gradient is spread evenly over the unclipped tokens, which averages token credit away. In both forms the sign of the
    token's own credit selects the side of the clip.
    """
    check_form(form)
    old_logp, credit = old_logp.detach(), credit.detach()
    log_ratio = clipped_log_ratio(logp, old_logp, credit, clip_low=clip_low, clip_high=clip_high)
    ratio = response_mean(log_ratio, mask).exp().expand_as(logp)
    if form == "token":
        ratio = ratio.detach() * (log_ratio - log_ratio.detach()).exp()
    return credit * ratio


def gmpo(*, clip_low: float = 0.4, clip_high: float = 0.4, form: SequenceForm = "token") -> Objective:
    """GMPO: minus `gmpo_surrogate`."""

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -gmpo_surrogate(inputs.logp, inputs.old_logp, inputs.credit, inputs.mask, clip_low=clip_low, clip_high=clip_high, form=form)

    return Objective(token_loss=token_loss, silent_without_credit=True)

"""Importance correction where the sampler's log-probs differ from the trainer's: truncated (TIS) or masked (MIS) importance sampling."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.masked import masked_mean, masked_sum
from tokencredit.objective.base import Objective, TokenInputs, importance_ratio, kl_estimate

CorrectionKind = Literal["none", "tis", "mis"]
CorrectionLevel = Literal["token", "sequence"]


def sampler_ratio(
    old_logp: Float[Tensor, "seq tok"],
    behavior_logp: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    level: CorrectionLevel = "token",
) -> Float[Tensor, "seq tok"]:
    """exp(old_logp - behavior_logp), trainer over sampler, per token or as the product over the response; 1 outside the mask.

    The exponent (for `sequence`: the sum) is clamped to +-20. `behavior_logp` may be NaN outside the mask.
    """
    if level not in ("token", "sequence"):
        raise ValueError(f"level is {level!r}; it must be token or sequence")
    gap = (old_logp - behavior_logp.to(old_logp.dtype)).detach().where(mask, 0.0)
    if level == "sequence":
        gap = gap.sum(-1, keepdim=True).where(mask, 0.0)
    return importance_ratio(gap, torch.zeros_like(gap))


def correction_weight(
    old_logp: Float[Tensor, "seq tok"],
    behavior_logp: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    kind: CorrectionKind = "none",
    level: CorrectionLevel = "token",
    cap: float = 2.0,
    floor: float = 0.0,
) -> Float[Tensor, "seq tok"]:
    """Factor on a token's loss: `tis` clamps the ratio to [floor, cap], `mis` sets it to 0 outside that range, `none` is 1.

    No gradient; 0 outside the mask, where alone `behavior_logp` may be NaN. With level "sequence" the bounds apply to the
    response's ratio, so that all tokens of a response are truncated or dropped together.
    """
    if floor > cap:
        raise ValueError(f"floor is {floor} but cap is {cap}; the floor must not be above the cap")
    ratio = sampler_ratio(old_logp, behavior_logp, mask, level=level)
    if kind == "none":
        weight = torch.ones_like(ratio)
    elif kind == "tis":
        weight = ratio.clamp(floor, cap)
    elif kind == "mis":
        weight = ratio.where((ratio >= floor) & (ratio <= cap), 0.0)
    else:
        raise ValueError(f"kind is {kind!r}; it must be none, tis or mis")
    return weight.where(mask, 0.0)


def with_correction(objective: Objective) -> Objective:
    """Multiply every token's loss by `inputs.correction`; apply it before `with_kl`, so that the KL term is not scaled."""

    def token_loss(inputs: TokenInputs, statistic: Any) -> Tensor:
        if inputs.correction is None:
            raise ValueError("correction is missing; give the weights that correction_weight computes from old and behavior log-probs")
        return inputs.correction.detach() * objective.token_loss(inputs, statistic)

    return replace(objective, token_loss=token_loss)


class MismatchStatistics(NamedTuple):
    """Difference between sampler and trainer over the mask's tokens, and the effect of the correction weights."""

    ratio_mean: float
    ratio_max: float
    kl: float
    """Mean of exp(d) - d - 1 with d = old_logp - behavior_logp: unbiased for KL(sampler || trainer), never negative."""
    weight_mean: float
    changed_share: float
    """Share of tokens whose weight is not the ratio itself: truncated, raised or dropped."""
    effective_share: float
    """Effective sample size of the weights over tokens, (sum w)^2 / (n sum w^2): 1 when all are equal, 0 when all are 0."""


def mismatch(
    old_logp: Float[Tensor, "seq tok"],
    behavior_logp: Float[Tensor, "seq tok"],
    weight: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    level: CorrectionLevel = "token",
) -> MismatchStatistics:
    """Statistics of the ratio at the weights' level, in float64; a batch without tokens counts as perfect agreement."""
    count = int(mask.sum())
    if count == 0:
        return MismatchStatistics(ratio_mean=1.0, ratio_max=1.0, kl=0.0, weight_mean=1.0, changed_share=0.0, effective_share=1.0)
    ratio = sampler_ratio(old_logp, behavior_logp, mask, level=level)
    exact, squares = weight.double(), masked_sum(weight.double().square(), mask)
    return MismatchStatistics(
        ratio_mean=float(masked_mean(ratio.double(), mask)),
        ratio_max=float(ratio[mask].max()),
        kl=float(masked_mean(kl_estimate(behavior_logp.double(), old_logp.double(), kind="k3"), mask)),
        weight_mean=float(masked_mean(exact, mask)),
        changed_share=float(masked_mean((weight != ratio).double(), mask)),
        effective_share=float(masked_sum(exact, mask).square() / (count * squares)) if squares > 0 else 0.0,
    )

"""FIPO (2603.19835): PPO clip in which a token weighs more when the tokens after it became more probable."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from tokencredit.objective.base import LOG_RATIO_LIMIT, Objective, TokenInputs, importance_ratio
from tokencredit.objective.clip import clipped_surrogate


def discounted_future_sum(value: Float[Tensor, "seq tok"], *, gamma: float, block: int = 128) -> Float[Tensor, "seq tok"]:
    """F_t = sum_{j >= t} gamma^(j - t) value_j, in blocks: a triangular product within each, then one number passed to the block before."""
    rows, width = value.shape
    blocks = -(-width // block)
    position = torch.arange(block, dtype=value.dtype, device=value.device)
    decay = (gamma ** (position[:, None] - position).clamp(min=0)).tril()
    within = pad(value, (0, blocks * block - width)).reshape(rows, blocks, block) @ decay
    if blocks > 1:
        # Later tokens enter a block through the sum at the first position of the next block.
        following = discounted_future_sum(within[:, 1:, 0], gamma=gamma**block, block=block)
        within[:, :-1] += following[:, :, None] * gamma ** (block - position)
    return within.flatten(1)[:, :width]


class FutureLimits(NamedTuple):
    """How far the future reaches and how far it may move a weight."""

    dual_clip: float = 10.0
    """Tokens with a larger ratio are left out of the sum."""
    decay: float = 32.0
    """Half-life in tokens."""
    weight_low: float = 0.0
    weight_high: float = 0.2
    """The weight stays in [1 - weight_low, 1 + weight_high]."""
    safety: float = 10.0
    safety_band: float = 0.2
    """The weight of negative credit at a larger ratio than `safety` stays in [1 - safety_band, 1]."""


DEFAULT_LIMITS = FutureLimits()


@torch.no_grad()
def future_weight(
    logp: Float[Tensor, "seq tok"],
    old_logp: Float[Tensor, "seq tok"],
    credit: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    limits: FutureLimits = DEFAULT_LIMITS,
) -> Float[Tensor, "seq tok"]:
    """f_t = clip(exp F_t, 1 - weight_low, 1 + weight_high), without gradient;  F_t = sum_{j >= t} 2^(-(j - t)/decay) log rho_j.

    The sum skips tokens outside the mask and those with rho > dual_clip, but distances j - t count them. Where credit is negative
    and rho > safety, f is clipped to [1 - safety_band, 1].
    """
    dual_clip, decay, weight_low, weight_high, safety, safety_band = limits
    ratio = importance_ratio(logp, old_logp)
    log_ratio = (logp - old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # In float64, so that reduced-precision products on an accelerator do not reach the weight.
    drift = log_ratio.where(mask & (ratio <= dual_clip), 0.0).double()
    future = discounted_future_sum(drift, gamma=2.0 ** (-1.0 / decay)).to(logp.dtype)
    weight = future.exp().clamp(1 - weight_low, 1 + weight_high)
    return torch.where((credit < 0) & (ratio > safety), weight.clamp(1 - safety_band, 1), weight)


def fipo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float = 10.0,
    decay: float = 32.0,
    weight_low: float = 0.0,
    weight_high: float = 0.2,
    safety: float = 10.0,
    safety_band: float = 0.2,
) -> Objective:
    """PPO clip with dual clip and f a in place of a; f is `future_weight` at the current policy.

    A response with more than one token that has negative credit and rho > dual_clip gives loss 0. At ratio 1, f = 1.
    """

    limits = FutureLimits(dual_clip, decay, weight_low, weight_high, safety, safety_band)

    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        logp, old_logp, credit, mask = inputs.logp, inputs.old_logp, inputs.credit, inputs.mask
        weight = future_weight(logp, old_logp, credit, mask, limits)
        surrogate = clipped_surrogate(logp, old_logp, weight * credit, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
        strayed = mask & (credit < 0) & (importance_ratio(logp, old_logp) > dual_clip)
        return -surrogate.masked_fill((strayed.sum(-1) > 1)[:, None], 0.0)

    return Objective(token_loss=token_loss, silent_without_credit=True)

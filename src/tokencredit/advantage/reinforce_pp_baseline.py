"""REINFORCE++-baseline: the group-centred reward, whitened over the tokens of the batch (2501.03262)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PresetName, comparable, preset_named
from tokencredit.advantage.whitened import whitened
from tokencredit.masked import group_statistics


def reinforce_pp_baseline_advantage(
    reward: Float[Tensor, " seq"],
    length: Int[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    preset: PresetName = "tokencredit",
    epsilon: float = 1e-8,
) -> Float[Tensor, " seq"]:
    """A_i = (d_i - m) / sqrt(v + epsilon), d_i = R_i - mean_g, m and v (n - 1) of d over all tokens of the batch.

    Outside m and v, and 0: a group of one (preset "verl": d = R), a NaN reward (preset "verl": R = 0), a response
    without tokens. A group without spread has d = 0; a batch of such groups gives 0.
    """
    rule = preset_named(preset)
    value = comparable(reward, rule)
    count, mean, std = group_statistics(value, group)
    centred = torch.where(std > 0, value - mean, torch.zeros_like(value))
    lone = value if rule.lone_response_keeps_reward else torch.full_like(value, torch.nan)
    centred = torch.where(count < 2, lone, centred)
    return whitened(torch.where(value.isnan(), value, centred), length, epsilon=epsilon)

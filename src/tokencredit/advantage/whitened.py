"""Whitening over the batch: mean 0 and variance 1 over all tokens, each carrying its response's value.

REINFORCE++: the reward whitened over the batch, without groups (2501.03262).

REINFORCE++-baseline: the group-centred reward, whitened over the tokens of the batch (2501.03262).
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.base import PresetName, comparable, preset_named
from tokencredit.masked import group_statistics


def whitened(value: Float[Tensor, " seq"], times: Int[Tensor, " seq"], *, epsilon: float = 1e-8) -> Float[Tensor, " seq"]:
    """(x_i - m) / sqrt(v + epsilon), m and v (n - 1) over the batch with x_i standing `times_i` times.

    Outside the statistics and 0: a NaN value, and one that stands nowhere. A batch without spread gives 0.
    """
    _, mean, std = group_statistics(value, torch.zeros_like(times), times)
    counted = (times > 0) & ~value.isnan() & (std > 0)
    # sqrt(v + epsilon) by way of the standard deviation, whose square a small reward would lose in float32.
    spread = std.hypot(std.new_tensor(math.sqrt(epsilon)))
    return torch.where(counted, (value - mean) / spread, torch.zeros_like(value))


def reinforce_pp_advantage(
    reward: Float[Tensor, " seq"],
    length: Int[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    over: Literal["tokens", "responses"] = "tokens",
    preset: PresetName = "tokencredit",
    epsilon: float = 1e-8,
) -> Float[Tensor, " seq"]:
    """A_i = (R_i - m) / sqrt(v + epsilon), m and v (n - 1) over all tokens, each carrying its response's reward.

    `over` "responses" counts each response once. `group` is not read. A batch without spread gives 0, a NaN reward 0
    (preset "verl": it is a reward of 0), and over tokens so does a response without any.
    """
    if over not in ("tokens", "responses"):
        raise ValueError(f"over is {over!r}; it must be tokens or responses")
    value = comparable(reward, preset_named(preset))
    return whitened(value, length if over == "tokens" else torch.ones_like(length), epsilon=epsilon)


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

"""Advantages whitened over the batch (mean 0, variance 1): REINFORCE++ and REINFORCE++-baseline."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.base import PresetName, get_preset, reward_of_preset
from tokencredit.masked import group_statistics


def whiten(value: Float[Tensor, " seq"], times: Int[Tensor, " seq"], *, epsilon: float = 1e-8) -> Float[Tensor, " seq"]:
    """(x_i - m) / sqrt(v + epsilon), m and v (n - 1) over the batch with x_i counted `times_i` times.

    A NaN value, and one counted 0 times, is left out of m and v and gives 0. A batch without spread gives 0.
    """
    _, mean, std = group_statistics(value, torch.zeros_like(times), times)
    counted = (times > 0) & ~value.isnan() & (std > 0)
    # sqrt(v + epsilon) from the standard deviation: squaring a small one would underflow in float32.
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
    """REINFORCE++ (2501.03262): A_i = (R_i - m) / sqrt(v + epsilon), m and v (n - 1) over all tokens of the batch.

    A token counts with its response's reward; `over` "responses" counts each response once. `group` is not read. A batch without
    spread gives 0, a NaN reward 0 (preset "verl": it is a reward of 0), and over tokens a response without tokens gives 0.
    """
    if over not in ("tokens", "responses"):
        raise ValueError(f"over is {over!r}; it must be tokens or responses")
    value = reward_of_preset(reward, get_preset(preset))
    return whiten(value, length if over == "tokens" else torch.ones_like(length), epsilon=epsilon)


def reinforce_pp_baseline_advantage(
    reward: Float[Tensor, " seq"],
    length: Int[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    preset: PresetName = "tokencredit",
    epsilon: float = 1e-8,
) -> Float[Tensor, " seq"]:
    """REINFORCE++-baseline (2501.03262): A_i = (d_i - m) / sqrt(v + epsilon), d_i = R_i - mean_g, m and v (n - 1) of d over all tokens.

    Left out of m and v, and 0: a group of one (preset "verl": d = R), a NaN reward (preset "verl": R = 0), a response without
    tokens. A group without spread has d = 0; a batch of such groups gives 0.
    """
    rule = get_preset(preset)
    value = reward_of_preset(reward, rule)
    count, mean, std = group_statistics(value, group)
    centred = torch.where(std > 0, value - mean, torch.zeros_like(value))
    lone = value if rule.lone_response_keeps_reward else torch.full_like(value, torch.nan)
    centred = torch.where(count < 2, lone, centred)
    return whiten(torch.where(value.isnan(), value, centred), length, epsilon=epsilon)

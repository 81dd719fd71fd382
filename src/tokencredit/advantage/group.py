"""GRPO: how many group standard deviations a response lies above its siblings (DeepSeekMath, 2402.03300)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PresetName, comparable, preset_named, settled
from tokencredit.masked import group_statistics


def grpo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit", epsilon: float | None = None
) -> Float[Tensor, " seq"]:
    """A_i = (R_i - mean_g) / (std_g + epsilon), sample standard deviation over graded siblings.

    A group without spread gives 0; a group of one gives 0 (preset "verl": R/(1 + epsilon)); a NaN reward gives 0.
    `epsilon` None takes the preset's.
    """
    rule = preset_named(preset)
    epsilon = rule.epsilon if epsilon is None else epsilon
    value = comparable(reward, rule)
    count, mean, std = group_statistics(value, group)
    # Chosen, not multiplied by 0: with epsilon 0 the division is 0 / 0 where there is no spread.
    advantage = torch.where(std > 0, (value - mean) / (std + epsilon), torch.zeros_like(value))
    return settled(advantage, value / (1 + epsilon), count, rule)

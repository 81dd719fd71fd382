"""OPO: the reward minus the mean of its group, weighted by length (2505.23585)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PresetName, comparable, preset_named, settled
from tokencredit.masked import group_statistics


def opo_advantage(
    reward: Float[Tensor, " seq"], length: Int[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """A_i = R_i - sum_j T_j R_j / sum_j T_j over graded siblings; a group without any token gives 0.

    A group of one gives 0 (preset "verl": R), a NaN reward 0.
    """
    rule = preset_named(preset)
    value = comparable(reward, rule)
    tokens, baseline, _ = group_statistics(value, group, length)
    advantage = torch.where(tokens > 0, value - baseline, torch.zeros_like(value))
    return settled(advantage, value, group_statistics(value, group).graded, rule)

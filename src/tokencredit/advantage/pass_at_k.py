"""Pass@k policy optimisation: only the best response of a group is credited, by its lead (2503.19595)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PresetName, comparable, preset_named, settled
from tokencredit.masked import best_sibling, group_statistics


def pass_at_k_advantage(
    reward: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    preset: PresetName = "tokencredit",
    normalize: bool = True,
    epsilon: float | None = None,
) -> Float[Tensor, " seq"]:
    """A_i = max(0, R_i - best sibling) / (std_g + epsilon), undivided without `normalize`: 0 for all but a sole best.

    A shared best, a group without spread, a group of one (under every preset: verl refuses it) and a NaN reward give 0.
    `epsilon` None takes the preset's.
    """
    rule = preset_named(preset)
    epsilon = rule.epsilon if epsilon is None else epsilon
    value = comparable(reward, rule)
    count, _, std = group_statistics(value, group)
    lead = (value - best_sibling(value, group)).clamp(min=0)
    if normalize:
        lead = torch.where(std > 0, lead / (std + epsilon), torch.zeros_like(lead))
    return settled(lead, value, count, rule._replace(lone_response_keeps_reward=False))

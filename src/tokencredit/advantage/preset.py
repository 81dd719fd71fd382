"""Where frameworks differ on the same formula: the numbers of ours, TRL's and verl's."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

PresetName = Literal["tokencredit", "trl", "verl"]


class Preset(NamedTuple):
    epsilon: float
    """Added to the group standard deviation."""
    lone_response_keeps_reward: bool
    """A group of one: its raw reward (verl) or 0."""
    ungraded_counts_as_zero: bool
    """A NaN reward is a 0 (verl) or left out of the group's statistics."""


PRESETS: dict[PresetName, Preset] = {
    "tokencredit": Preset(epsilon=1e-6, lone_response_keeps_reward=False, ungraded_counts_as_zero=False),
    "trl": Preset(epsilon=1e-4, lone_response_keeps_reward=False, ungraded_counts_as_zero=False),
    "verl": Preset(epsilon=1e-6, lone_response_keeps_reward=True, ungraded_counts_as_zero=True),
}


def preset_named(name: PresetName) -> Preset:
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; it must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


def comparable(reward: Float[Tensor, " seq"], preset: Preset) -> Float[Tensor, " seq"]:
    """The reward as the preset compares it."""
    if reward.isinf().any():
        raise ValueError(f"reward is infinite at {int(reward.isinf().sum())} of {reward.numel()} responses; it must be finite or NaN")
    return torch.nan_to_num(reward, nan=0.0) if preset.ungraded_counts_as_zero else reward


def settled(
    advantage: Float[Tensor, " seq"], reward: Float[Tensor, " seq"], count: Float[Tensor, " seq"], preset: Preset
) -> Float[Tensor, " seq"]:
    """Apply the two rules every group comparison needs: groups of one, and responses without a grade."""
    lone = reward if preset.lone_response_keeps_reward else torch.zeros_like(reward)
    advantage = torch.where(count < 2, lone, advantage)
    return torch.where(reward.isnan(), torch.zeros_like(reward), advantage)

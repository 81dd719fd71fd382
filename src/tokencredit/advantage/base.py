"""The form every advantage takes: evidence about responses and a state in, one number per response and the state out.

Where frameworks differ on the same formula: the numbers of ours, TRL's and verl's.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.types import State


class AdvantageInputs(NamedTuple):
    reward: Float[Tensor, " seq"]
    group: Int[Tensor, " seq"]
    length: Int[Tensor, " seq"] | None = None
    """Loss tokens of each response."""
    score: Float[Tensor, " seq"] | None = None
    """What the verifier said, before shaping."""
    entropy: float | None = None
    """Mean entropy of the batch's response tokens, in nats."""
    greedy_score: Float[Tensor, " seq"] | None = None
    """What the verifier said of the policy's greedy response to the same prompt; NaN where it could not."""


class AdvantageOutcome(NamedTuple):
    advantage: Float[Tensor, " seq"]
    state: State


Advantage = Callable[..., AdvantageOutcome]
"""`(inputs, state, **knobs) -> AdvantageOutcome`"""


def from_rewards(function: Callable[..., Tensor]) -> Advantage:
    """Lift `function(reward, group, **knobs)`, which remembers nothing, into the stage's form."""

    @wraps(function)
    def stage(inputs: AdvantageInputs, state: State, **knobs: Any) -> AdvantageOutcome:
        return AdvantageOutcome(function(inputs.reward, inputs.group, **knobs), state)

    return stage


def from_scores(function: Callable[..., Tensor]) -> Advantage:
    """Lift `function(score, group, **knobs)`, which looks at what the verifier said and not at the shaped reward."""

    @wraps(function)
    def stage(inputs: AdvantageInputs, state: State, **knobs: Any) -> AdvantageOutcome:
        if inputs.score is None:
            raise ValueError("score is missing; this advantage goes by what the verifier said, before shaping")
        return AdvantageOutcome(function(inputs.score, inputs.group, **knobs), state)

    return stage


def from_lengths(function: Callable[..., Tensor]) -> Advantage:
    """Lift `function(reward, length, group, **knobs)`, which remembers nothing, into the stage's form."""

    @wraps(function)
    def stage(inputs: AdvantageInputs, state: State, **knobs: Any) -> AdvantageOutcome:
        if inputs.length is None:
            raise ValueError("length is missing; this advantage weighs responses by their loss tokens")
        return AdvantageOutcome(function(inputs.reward, inputs.length, inputs.group, **knobs), state)

    return stage


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

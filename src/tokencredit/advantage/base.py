"""The interface of advantage methods (`AdvantageInputs` and a state in, `AdvantageOutcome` out), and the presets of TRL and verl."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.types import State


class AdvantageInputs(NamedTuple):
    """One batch of responses with the evidence that a method may use."""

    reward: Float[Tensor, " seq"]
    group: Int[Tensor, " seq"]
    length: Int[Tensor, " seq"] | None = None
    """Loss tokens of each response."""
    score: Float[Tensor, " seq"] | None = None
    """The verifier's score, before shaping."""
    entropy: float | None = None
    """Mean entropy of the batch's response tokens, in nats."""
    greedy_score: Float[Tensor, " seq"] | None = None
    """The verifier's score of the policy's greedy response to the same prompt; NaN if ungraded."""


class AdvantageOutcome(NamedTuple):
    advantage: Float[Tensor, " seq"]
    state: State


Advantage = Callable[..., AdvantageOutcome]
"""`(inputs, state, **knobs) -> AdvantageOutcome`"""


def from_rewards(function: Callable[..., Tensor]) -> Advantage:
    """Adapt the stateless `function(reward, group, **knobs)` to the interface."""

    @wraps(function)
    def stage(inputs: AdvantageInputs, state: State, **knobs: Any) -> AdvantageOutcome:
        return AdvantageOutcome(function(inputs.reward, inputs.group, **knobs), state)

    return stage


def from_scores(function: Callable[..., Tensor]) -> Advantage:
    """Adapt the stateless `function(score, group, **knobs)`, which reads the verifier's score instead of the shaped reward."""

    @wraps(function)
    def stage(inputs: AdvantageInputs, state: State, **knobs: Any) -> AdvantageOutcome:
        if inputs.score is None:
            raise ValueError("score is missing; this advantage reads the verifier's score, before shaping")
        return AdvantageOutcome(function(inputs.score, inputs.group, **knobs), state)

    return stage


def from_lengths(function: Callable[..., Tensor]) -> Advantage:
    """Adapt the stateless `function(reward, length, group, **knobs)` to the interface."""

    @wraps(function)
    def stage(inputs: AdvantageInputs, state: State, **knobs: Any) -> AdvantageOutcome:
        if inputs.length is None:
            raise ValueError("length is missing; this advantage weighs responses by their loss tokens")
        return AdvantageOutcome(function(inputs.reward, inputs.length, inputs.group, **knobs), state)

    return stage


PresetName = Literal["tokencredit", "trl", "verl"]


class Preset(NamedTuple):
    """The details of the group comparison in which TRL, verl and this library differ."""

    epsilon: float
    """Added to the group standard deviation."""
    lone_response_keeps_reward: bool
    """In a group of one the advantage is the reward (verl), else 0."""
    ungraded_counts_as_zero: bool
    """A NaN reward counts as 0 (verl), else the group's statistics leave it out."""


PRESETS: dict[PresetName, Preset] = {
    "tokencredit": Preset(epsilon=1e-6, lone_response_keeps_reward=False, ungraded_counts_as_zero=False),
    "trl": Preset(epsilon=1e-4, lone_response_keeps_reward=False, ungraded_counts_as_zero=False),
    "verl": Preset(epsilon=1e-6, lone_response_keeps_reward=True, ungraded_counts_as_zero=True),
}


def get_preset(name: PresetName) -> Preset:
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; it must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


def reward_of_preset(reward: Float[Tensor, " seq"], preset: Preset) -> Float[Tensor, " seq"]:
    """The reward with NaN replaced by 0 if the preset says so; an infinite reward is an error."""
    if reward.isinf().any():
        raise ValueError(f"reward is infinite at {int(reward.isinf().sum())} of {reward.numel()} responses; it must be finite or NaN")
    return torch.nan_to_num(reward, nan=0.0) if preset.ungraded_counts_as_zero else reward


def with_edge_cases(
    advantage: Float[Tensor, " seq"], reward: Float[Tensor, " seq"], count: Float[Tensor, " seq"], preset: Preset
) -> Float[Tensor, " seq"]:
    """The advantage with the preset's value for groups of one (`reward` or 0), and 0 where `reward` is NaN."""
    lone = reward if preset.lone_response_keeps_reward else torch.zeros_like(reward)
    advantage = torch.where(count < 2, lone, advantage)
    return torch.where(reward.isnan(), torch.zeros_like(reward), advantage)

"""The form every advantage takes: evidence about responses and a state in, one number per response and the state out."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

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

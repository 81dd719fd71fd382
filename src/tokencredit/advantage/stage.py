"""The form every advantage takes: evidence about responses and a state in, one number per response and the state out."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

State = Mapping[str, Any]
"""What a method remembers between steps. JSON values only, so that a checkpoint can hold it."""


class AdvantageInputs(NamedTuple):
    reward: Float[Tensor, " seq"]
    group: Int[Tensor, " seq"]


class AdvantageOutcome(NamedTuple):
    advantage: Float[Tensor, " seq"]
    state: State


Advantage = Callable[..., AdvantageOutcome]
"""`(inputs, state, **knobs) -> AdvantageOutcome`"""


def from_rewards(function: Callable[..., Tensor]) -> Advantage:
    """Lift `function(reward, group, **knobs)`, which remembers nothing, into the stage's form."""

    def stage(inputs: AdvantageInputs, state: State, **knobs: Any) -> AdvantageOutcome:
        return AdvantageOutcome(function(inputs.reward, inputs.group, **knobs), state)

    return stage

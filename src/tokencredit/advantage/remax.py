"""ReMax: the reward minus that of the policy's greedy response to the same prompt (2310.10505)."""

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.advantage.base import AdvantageInputs, AdvantageOutcome
from tokencredit.advantage.preset import PRESETS, comparable
from tokencredit.types import State


def remax_advantage(reward: Float[Tensor, " seq"], greedy_score: Float[Tensor, " seq"]) -> Float[Tensor, " seq"]:
    """A_i = R_i - score of the greedy response; 0 where either could not be graded. Needs no siblings."""
    value = comparable(reward, PRESETS["tokencredit"])
    return torch.nan_to_num(value - greedy_score.to(value.dtype), nan=0.0)


def remax_stage(inputs: AdvantageInputs, state: State) -> AdvantageOutcome:
    if inputs.greedy_score is None:
        raise ValueError("greedy_score is missing; remax compares with the policy's greedy response to each prompt")
    return AdvantageOutcome(remax_advantage(inputs.reward, inputs.greedy_score), state)

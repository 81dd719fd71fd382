"""Process credit: every token of a segment receives the segment's gain in the probability of success."""

from typing import Literal, get_args

import torch

from tokencredit.credit.base import CreditInputs, CreditOutcome, State
from tokencredit.masked import group_statistics

DeadGroups = Literal["skip", "branch"]


def process_credit(inputs: CreditInputs, state: State, *, dead_groups: DeadGroups = "skip") -> CreditOutcome:
    """a_it = V(next boundary) - V(the boundary at or before t); the last segment ends at the response's score (VinePPO, our reading).

    VinePPO is 2410.01679. Boundaries are the first token, where V is the mean score of the group's graded responses, and every
    token with a known `prefix_value`; an unknown value merges two segments. Summed over segments the gains are score - group mean.
    A NaN score gives 0; so does, with "skip", a group whose graded scores are all equal.
    """
    if dead_groups not in get_args(DeadGroups):
        raise ValueError(f"dead_groups is {dead_groups!r}; it must be one of {', '.join(get_args(DeadGroups))}")
    if inputs.score is None or inputs.prefix_value is None:
        missing = "score" if inputs.score is None else "prefix_value"
        raise ValueError(f"{missing} is missing; process credit needs the scores and the values of prefixes")
    score = inputs.score.double()
    _, mean, std = group_statistics(score, inputs.group)
    first = inputs.mask & (inputs.mask.cumsum(-1) == 1)
    boundary = first | (inputs.mask & ~inputs.prefix_value.isnan())
    value = inputs.prefix_value.double().where(~first, mean[:, None])

    # The added column is the end of the response, where the value is the score.
    value = torch.cat([value, score[:, None]], dim=-1)
    end = inputs.mask.shape[-1]
    position = torch.arange(end, device=boundary.device).expand_as(boundary)
    start = position.where(boundary, 0).cummax(-1).values
    following = position.where(boundary, end).flip(-1).cummin(-1).values.flip(-1).roll(-1, -1)
    following[:, -1:] = end
    gain = value.gather(-1, following) - value.gather(-1, start)

    credited = ~score.isnan() & ((std > 0) | (dead_groups == "branch"))
    return CreditOutcome(gain.where(inputs.mask & credited[:, None], 0.0).to(inputs.advantage.dtype), None, state)

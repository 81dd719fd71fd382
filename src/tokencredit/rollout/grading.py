"""Read responses as text and ask the task's verifier."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.policy.policy import Policy
from tokencredit.rollout.turns import on_cpu, turns_of
from tokencredit.tasks import Conversing, Problem, Task, turn_verdicts, verdicts
from tokencredit.types import Rollouts


class Graded(NamedTuple):
    score: Float[Tensor, " seq"]
    """NaN where a response could not be graded."""
    reasons: Mapping[str, int]
    """Why, and how many."""


def response_text(policy: Policy, rollouts: Rollouts, row: int) -> str:
    return policy.decode(rollouts.tokens[row][rollouts.mask[row]].tolist())


def _answer(policy: Policy, rollouts: Rollouts, row: int) -> str:
    return policy.answer(rollouts.tokens[row][rollouts.mask[row]].tolist())


def grade_with_reasons(policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts) -> Graded:
    """One score per response; `problems[g]` is what group g answers."""
    groups, device, rollouts = rollouts.group.tolist(), rollouts.tokens.device, on_cpu(rollouts)
    if isinstance(task, Conversing):
        found = turn_verdicts(task, [(problems[group], turns_of(policy, rollouts, row)) for row, group in enumerate(groups)])
    else:
        found = verdicts(task, [(problems[group], _answer(policy, rollouts, row)) for row, group in enumerate(groups)])
    dtype = torch.float64 if policy.model.dtype == torch.float64 else torch.float32
    score = torch.tensor([verdict.score for verdict in found], dtype=dtype, device=device)
    return Graded(score, Counter(verdict.reason or "no reason given" for verdict in found if verdict.score != verdict.score))


def grade_rollouts(policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts) -> Float[Tensor, " seq"]:
    return grade_with_reasons(policy, task, problems, rollouts).score

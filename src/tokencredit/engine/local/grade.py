"""Read responses as text and ask the task's verifier."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.engine.local.policy import Policy
from tokencredit.tasks import Problem, Task
from tokencredit.types import Rollouts


def response_text(policy: Policy, rollouts: Rollouts, row: int) -> str:
    return policy.decode(rollouts.tokens[row][rollouts.mask[row]].tolist())


def grade_rollouts(policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts) -> Float[Tensor, " seq"]:
    """One score per response; `problems[g]` is what group g answers."""
    groups = rollouts.group.tolist()
    scores = [task.grade(problems[group], response_text(policy, rollouts, row)) for row, group in enumerate(groups)]
    dtype = torch.float64 if policy.model.dtype == torch.float64 else torch.float32
    return torch.tensor(scores, dtype=dtype, device=rollouts.tokens.device)

"""Grade responses with the task's verifier, and the reward parts in addition to its score: format and length."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import Reward
from tokencredit.policy.policy import Policy
from tokencredit.rollout.multi_turn import on_cpu, turn_tokens, turns_of
from tokencredit.tasks import MultiTurn, Problem, Task, turn_verdicts, verdicts
from tokencredit.types import Rollouts


class Graded(NamedTuple):
    score: Float[Tensor, " seq"]
    """NaN where a response could not be graded."""
    reasons: Mapping[str, int]
    """Reasons why responses could not be graded, with counts."""


def response_text(policy: Policy, rollouts: Rollouts, row: int) -> str:
    return policy.decode(rollouts.tokens[row][rollouts.mask[row]].tolist())


def _answer(policy: Policy, rollouts: Rollouts, row: int) -> str:
    return policy.answer(rollouts.tokens[row][rollouts.mask[row]].tolist())


def grade_with_reasons(policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts) -> Graded:
    """One score per response; `problems[g]` is the problem of group g."""
    groups, device, rollouts = rollouts.group.tolist(), rollouts.tokens.device, on_cpu(rollouts)
    if isinstance(task, MultiTurn):
        found = turn_verdicts(task, [(problems[group], turns_of(policy, rollouts, row)) for row, group in enumerate(groups)])
    else:
        found = verdicts(task, [(problems[group], _answer(policy, rollouts, row)) for row, group in enumerate(groups)])
    dtype = torch.float64 if policy.model.dtype == torch.float64 else torch.float32
    score = torch.tensor([verdict.score for verdict in found], dtype=dtype, device=device)
    return Graded(score, Counter(verdict.reason or "no reason given" for verdict in found if verdict.score != verdict.score))


def grade_rollouts(policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts) -> Float[Tensor, " seq"]:
    return grade_with_reasons(policy, task, problems, rollouts).score


RIGHT = 1.0
"""A score of at least this is right."""


def reward_parts(policy: Policy, rollouts: Rollouts, score: Float[Tensor, " seq"], *, limit: int) -> dict[str, Tensor]:
    """correct: 1 or 0, NaN where ungraded; format: 1 where the response follows it; length: fraction of the limit used."""
    kept = torch.ones_like(rollouts.finished)
    if policy.prompting.tags:
        read = on_cpu(rollouts)
        turns = (turn_tokens(read, row) for row in range(len(read.prompts)))
        kept = torch.tensor([all(policy.prompting.well_formed(policy.decode(turn)) for turn in row) for row in turns], device=score.device)
    return {
        "correct": (score >= RIGHT).to(score.dtype).where(~score.isnan(), torch.nan),
        "format": (kept & rollouts.finished).to(score.dtype),
        "length": (rollouts.mask.sum(-1) / limit).to(score.dtype),
    }


def part_means(parts: Mapping[str, Tensor]) -> dict[str, float]:
    """Means to log; a part that is NaN for every response is left out."""
    return {f"reward/{name}": float(value.nanmean()) for name, value in parts.items() if not bool(value.isnan().all())}


def bonus(parts: Mapping[str, Tensor], reward: Reward) -> Tensor | None:
    """Added to the score of each response; None where only the score counts."""
    if not reward.format and not reward.length:
        return None
    return reward.format * parts["format"] - reward.length * parts["length"] * (parts["correct"] == 1)

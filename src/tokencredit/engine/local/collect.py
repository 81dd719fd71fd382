"""Sample and grade one batch; with dynamic sampling, replace groups whose scores are all alike."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config import TrainConfig
from tokencredit.engine.local.grade import grade_rollouts
from tokencredit.engine.local.policy import Policy
from tokencredit.engine.local.sample import sample
from tokencredit.engine.local.stopwatch import Stopwatch
from tokencredit.masked import group_statistics
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task
from tokencredit.types import Rollouts


class GradedBatch(NamedTuple):
    problems: list[Problem]
    """`problems[g]` is what group g answers."""
    rollouts: Rollouts
    score: Float[Tensor, " seq"]
    rollouts_used: int
    """Sampled in all, the discarded ones included."""


def join_rollouts(parts: list[Rollouts]) -> Rollouts:
    """Rows one after another, padded to the widest, groups renumbered in order of appearance."""
    width = max(part.tokens.shape[1] for part in parts)

    def widen(tensor: Tensor) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]))

    groups: list[Tensor] = []
    seen = 0
    for part in parts:
        known, inverse = torch.unique(part.group, return_inverse=True)
        groups.append(inverse + seen)
        seen += len(known)
    return Rollouts(
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        tokens=torch.cat([widen(part.tokens) for part in parts]),
        mask=torch.cat([widen(part.mask) for part in parts]),
        group=torch.cat(groups),
        behavior_logp=torch.cat([widen(part.behavior_logp) for part in parts]),
        finished=torch.cat([part.finished for part in parts]),
    )


def _round(policy: Policy, task: Task, config: TrainConfig, count: int, step: int, attempt: int, watch: Stopwatch) -> GradedBatch:
    problems = task.problems(count, split="train", seed=derive_seed(config.seed, "prompts", step, attempt))
    with watch.stage("sample"):
        rollouts = sample(
            policy,
            [policy.encode(problem.prompt) for problem in problems],
            group_size=config.sampling.group_size,
            max_new_tokens=config.sampling.max_new_tokens,
            seed=derive_seed(config.seed, "sample", step, attempt),
            temperature=config.sampling.temperature,
            dtype=config.dtype,
        )
    with watch.stage("grade"):
        score = grade_rollouts(policy, task, problems, rollouts)
    return GradedBatch(problems, rollouts, score, len(score))


def _mixed_only(batch: GradedBatch) -> GradedBatch:
    spread = group_statistics(batch.score, batch.rollouts.group).std > 0
    kept = [group for group in range(len(batch.problems)) if bool(spread[batch.rollouts.group == group].any())]
    rows = torch.isin(batch.rollouts.group, torch.tensor(kept, device=spread.device)).nonzero()[:, 0]
    return GradedBatch([batch.problems[group] for group in kept], batch.rollouts.select(rows), batch.score[rows], batch.rollouts_used)


def collect(policy: Policy, task: Task, config: TrainConfig, *, step: int, watch: Stopwatch) -> GradedBatch:
    """One batch of graded rollouts. With `filter_groups` it may hold fewer groups than asked, if retries run out."""
    wanted = config.sampling.prompts
    if not config.filter_groups:
        return _round(policy, task, config, wanted, step, 0, watch)
    kept: list[GradedBatch] = []
    missing, used = wanted, 0
    for attempt in range(1 + config.filter_retries):
        fresh = _mixed_only(_round(policy, task, config, missing, step, attempt, watch))
        used += fresh.rollouts_used
        kept.append(fresh)
        missing -= len(fresh.problems)
        if missing == 0:
            break
    return GradedBatch(
        [problem for part in kept for problem in part.problems],
        join_rollouts([part.rollouts for part in kept]),
        torch.cat([part.score for part in kept]),
        used,
    )

"""Accuracy on held-out problems: greedy, one sample (pass@1), and the best of k (pass@k)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tokencredit.engine.local.grade import grade_rollouts
from tokencredit.engine.local.policy import Policy
from tokencredit.engine.local.sample import sample
from tokencredit.tasks import Problem, Task


class Accuracy(NamedTuple):
    greedy: float
    sampled: float
    """pass@1: the share of sampled responses that are right."""
    pass_at_k: float
    k: int
    mixed_groups: float
    """Share of problems with both right and wrong samples."""
    length: float
    problems: int

    def to_json(self) -> dict[str, float]:
        return dict(self._asdict())


def evaluate(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    *,
    samples: int,
    max_new_tokens: int,
    seed: int,
    temperature: float = 1.0,
    dtype: str = "float32",
) -> Accuracy:
    """An ungraded response counts as wrong here: it did not solve the problem."""
    prompts = [policy.encode(problem.prompt) for problem in problems]
    limits = {"max_new_tokens": max_new_tokens, "seed": seed, "dtype": dtype}
    drawn = sample(policy, prompts, group_size=samples, temperature=temperature, **limits).rollouts
    greedy = sample(policy, prompts, group_size=1, greedy=True, **limits).rollouts
    right = torch.nan_to_num(grade_rollouts(policy, task, problems, drawn)).view(len(problems), samples) >= 1.0
    greedy_right = torch.nan_to_num(grade_rollouts(policy, task, problems, greedy)) >= 1.0
    return Accuracy(
        greedy=float(greedy_right.double().mean()),
        sampled=float(right.double().mean()),
        pass_at_k=float(right.any(1).double().mean()),
        k=samples,
        mixed_groups=float((right.any(1) & ~right.all(1)).double().mean()),
        length=float(drawn.mask.sum(1).double().mean()),
        problems=len(problems),
    )

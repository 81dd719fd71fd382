"""Accuracy on held-out problems: greedy, one sample (pass@1), and the best of k (pass@k)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tokencredit.policy.policy import Policy
from tokencredit.rollout.generate import ROWS_AT_ONCE, generate
from tokencredit.rollout.grading import grade_rollouts
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
    ungraded: float = 0.0
    """Share of sampled responses that could not be graded; they count as wrong."""

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
    at_once = max(1, ROWS_AT_ONCE // samples)
    right, greedy_right, lengths, ungraded = [], [], [], []
    for start in range(0, len(problems), at_once):
        asked = problems[start : start + at_once]
        limits = {"max_new_tokens": max_new_tokens, "seed": seed + start, "dtype": dtype}
        drawn = generate(policy, task, asked, group_size=samples, temperature=temperature, **limits).rollouts
        greedy = generate(policy, task, asked, group_size=1, greedy=True, **limits).rollouts
        score = grade_rollouts(policy, task, asked, drawn).view(len(asked), samples)
        right.append(score >= 1.0)
        ungraded.append(score.isnan())
        greedy_right.append(grade_rollouts(policy, task, asked, greedy) >= 1.0)
        lengths.append(drawn.mask.sum(1))
    solved = torch.cat(right)
    return Accuracy(
        greedy=float(torch.cat(greedy_right).double().mean()),
        sampled=float(solved.double().mean()),
        pass_at_k=float(solved.any(1).double().mean()),
        k=samples,
        mixed_groups=float((solved.any(1) & ~solved.all(1)).double().mean()),
        length=float(torch.cat(lengths).double().mean()),
        problems=len(problems),
        ungraded=float(torch.cat(ungraded).double().mean()),
    )

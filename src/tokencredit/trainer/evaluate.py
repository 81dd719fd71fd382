"""Accuracy on held-out problems: greedy, one sample (pass@1), and the best of k (pass@k)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from tokencredit.config.train import TrainConfig
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.generate import ROWS_AT_ONCE, generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task

HELD_OUT = "held_out/"
"""Prefix of held-out metrics in metrics.jsonl."""
HELD_OUT_ACCURACY = f"{HELD_OUT}sampled"


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

    def as_metrics(self) -> dict[str, float]:
        return {f"{HELD_OUT}{name}": value for name, value in self._asdict().items()}


def evaluate(policy: Policy, task: Task, problems: Sequence[Problem], params: SamplingParams) -> Accuracy:
    """An ungraded response counts as wrong here: it did not solve the problem."""
    samples = params.group_size
    at_once = max(1, ROWS_AT_ONCE // samples)
    right, greedy_right, lengths, ungraded = [], [], [], []
    for start in range(0, len(problems), at_once):
        chunk = problems[start : start + at_once]
        drawing = replace(params, seed=params.seed + start)
        drawn = generate(policy, task, chunk, drawing).rollouts
        greedy = generate(policy, task, chunk, drawing.greedily()).rollouts
        score = grade_rollouts(policy, task, chunk, drawn).view(len(chunk), samples)
        right.append(score >= 1.0)
        ungraded.append(score.isnan())
        greedy_right.append(grade_rollouts(policy, task, chunk, greedy) >= 1.0)
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


def evaluate_held_out(policy: Policy, task: Task, held_out: Sequence[Problem], config: TrainConfig, *, final: bool) -> Accuracy:
    """Evaluate on the same held-out problems with the same seeds every time, so that differences come from the policy."""
    chosen = config.evaluation
    problems = held_out[: None if final else chosen.problems]
    samples = chosen.final_samples if final else chosen.samples
    return evaluate(
        policy, task, problems, SamplingParams.from_config(config, seed=derive_seed(config.seed, "evaluate"), group_size=samples)
    )

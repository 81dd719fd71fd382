"""Evaluate a policy on a task without training it: accuracy with confidence intervals, and statistics of its responses."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import response_extent
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import RIGHT, grade_rollouts, grade_with_reasons, response_text, reward_parts
from tokencredit.seeds import derive_seed
from tokencredit.stats import Estimate, mixed_at, over_problems, pass_at_k, powers_of_two
from tokencredit.tasks import Problem, Task, gold_answer

ROWS_AT_ONCE = 256
"""Responses sampled together: few enough to show progress. What a seed samples depends on this number."""

Notify = Callable[[int], None]
"""Called with the number of problems that are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    problems: int
    samples: int
    greedy: Estimate
    pass_at: Mapping[int, Estimate]
    """k -> share of problems that the best of k samples solves; k = 1 is the share of right samples."""
    mixed: Estimate
    """Share of groups whose scores differ: a method that compares siblings learns nothing from the others."""
    group_size: int
    """Size of those groups: sampling.siblings, or the number of samples where that is smaller."""
    length: float
    """Mean tokens of a sampled response."""
    cut: float
    """Share of sampled responses that reached the length limit."""
    entropy: float
    """Mean over sampled tokens, in nats, at the temperature of sampling."""
    parts: Mapping[str, float]
    """Means of the reward's parts; rollout/grading.py defines each."""
    ungraded: float
    """Share of sampled responses that could not be graded; they count as wrong."""
    reasons: Mapping[str, int]
    """Reason -> number of ungraded responses."""
    answers: int
    """Number of distinct gold answers."""
    commonest: float
    """Share of problems whose gold answer is the most frequent one: the accuracy of always giving it."""
    tokens: int
    """Sampled tokens in total, greedy responses included."""
    sampling_seconds: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        values["pass_at"] = {str(k): estimate._asdict() for k, estimate in self.pass_at.items()}
        return values | {name: getattr(self, name)._asdict() for name in ("greedy", "mixed")} | {"reasons": dict(self.reasons)}


class _Batch(NamedTuple):
    """The responses to one batch of problems, and their scores."""

    score: torch.Tensor
    greedy: torch.Tensor
    sampled: Sampled
    reasons: Mapping[str, int]
    parts: Mapping[str, torch.Tensor]
    tokens: int
    seconds: float


def measure(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    config: TrainConfig,
    *,
    samples: int,
    notify: Notify = lambda done: None,
    keep: list[dict[str, Any]] | None = None,
) -> Measured:
    """Sample and grade; the same seed gives the same numbers. Appends one row of a rollout file per sampled response to `keep`."""
    began, at_once = time.perf_counter(), max(1, ROWS_AT_ONCE // samples)
    batches: list[_Batch] = []
    for start in range(0, len(problems), at_once):
        chunk = problems[start : start + at_once]
        batches.append(_sample_batch(policy, task, chunk, config, samples=samples, seed=derive_seed(config.seed, "evaluate", start)))
        if keep is not None:
            keep += _rows(policy, chunk, batches[-1], first=start)
        notify(start + len(chunk))
    score, answers = torch.cat([batch.score for batch in batches]), Counter(gold_answer(task, problem) for problem in problems)
    right = (score >= RIGHT).sum(1).tolist()
    size = min(samples, config.sampling.siblings)
    sampled_tokens = sum(int(batch.sampled.rollouts.mask.sum()) for batch in batches)
    return Measured(
        problems=len(problems),
        samples=samples,
        greedy=over_problems((torch.cat([batch.greedy for batch in batches]) >= RIGHT).double().tolist(), 1),
        pass_at={k: over_problems([pass_at_k(count, samples, k) for count in right], samples) for k in powers_of_two(samples)},
        mixed=over_problems([mixed_at(row, size) for row in score.tolist()], samples),
        group_size=size,
        length=sampled_tokens / score.numel(),
        cut=sum(int((~batch.sampled.rollouts.finished).sum()) for batch in batches) / score.numel(),
        entropy=sum(float(batch.sampled.evidence.entropy.double().sum()) for batch in batches) / max(1, sampled_tokens),
        parts={name: _mean(torch.cat([batch.parts[name] for batch in batches])) for name in batches[0].parts},
        ungraded=float(score.isnan().double().mean()),
        reasons=sum((Counter(batch.reasons) for batch in batches), Counter()),
        answers=len(answers),
        commonest=max(answers.values()) / len(problems),
        tokens=sum(batch.tokens for batch in batches),
        sampling_seconds=sum(batch.seconds for batch in batches),
        seconds=time.perf_counter() - began,
    )


def _sample_batch(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig, *, samples: int, seed: int) -> _Batch:
    chosen, began = config.sampling, time.perf_counter()
    params = SamplingParams.from_config(config, seed=seed, group_size=samples)
    sampled = generate(policy, task, problems, params)
    greedy = generate(policy, task, problems, params.greedily()).rollouts
    seconds = time.perf_counter() - began
    graded = grade_with_reasons(policy, task, problems, sampled.rollouts)
    return _Batch(
        graded.score.view(len(problems), samples),
        grade_rollouts(policy, task, problems, greedy),
        sampled,
        graded.reasons,
        reward_parts(policy, sampled.rollouts, graded.score, limit=chosen.max_new_tokens),
        int(sampled.rollouts.mask.sum()) + int(greedy.mask.sum()),
        seconds,
    )


def _mean(part: torch.Tensor) -> float:
    """The mean over graded responses; 0 where none was graded."""
    return float(part.double().nanmean()) if not bool(part.isnan().all()) else 0.0


def _rows(policy: Policy, problems: Sequence[Problem], batch: _Batch, *, first: int) -> list[dict[str, Any]]:
    """The sampled responses as rows of a rollout file; groups are numbered from `first`."""
    rollouts, score = batch.sampled.rollouts, batch.score.flatten().tolist()
    extent = response_extent(rollouts.mask).tolist()
    return [
        {
            "group": first + group,
            "prompt": problems[group].prompt,
            "prompt_ids": list(rollouts.prompts[row]),
            "response": response_text(policy, rollouts, row),
            "response_ids": rollouts.tokens[row, : extent[row]].tolist(),
            "score": score[row],
            "logp": rollouts.behavior_logp[row, : extent[row]].tolist(),
            "mask": rollouts.mask[row, : extent[row]].tolist(),
            "finished": bool(rollouts.finished[row]),
            "answer": problems[group].answer,
        }
        for row, group in enumerate(rollouts.group.tolist())
    ]

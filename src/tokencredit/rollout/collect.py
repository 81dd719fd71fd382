"""Sample and grade one batch; with dynamic sampling, replace groups whose scores are all alike.

Work of the device beside work of the host: tokens are scored in a thread while responses are graded in child processes.

Grading stays in the main thread, where a stop that is asked for interrupts it; a scoring pass is short enough to be waited for.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.masked import group_statistics
from tokencredit.pipeline.guards import check_scores
from tokencredit.policy.policy import Policy
from tokencredit.rollout.generate import demonstrated, generate
from tokencredit.rollout.grading import RIGHT, grade_with_reasons, reward_parts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import BatchGrading, Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.types import Rollouts, TokenScores

Found = TypeVar("Found")


@contextmanager
def score_while_grading(work: Callable[[], Found]) -> Iterator[Future[Found]]:
    """`work` runs beside the block, which never ends before it; what it raises is raised by `result()`."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside") as one_thread:
        yield one_thread.submit(work)


class GradedBatch(NamedTuple):
    problems: list[Problem]
    """`problems[g]` is what group g answers."""
    rollouts: Rollouts
    evidence: TokenScores
    """What the sampler saw of every token, or a scoring pass where one ran beside the grading."""
    score: Float[Tensor, " seq"]
    rollouts_used: int
    """Sampled in all, the discarded ones included."""
    parts: Mapping[str, Float[Tensor, " seq"]]
    """What a response earns, part by part."""
    ungraded: Mapping[str, int]
    """Why responses could not be graded, and how many; of all that were sampled."""
    scored_beside: bool = False
    """The evidence is that of a scoring pass already."""


Score = Callable[[Rollouts], TokenScores]


def _widen(tensor: Tensor, width: int) -> Tensor:
    """Pad the token axis, the second, on the right."""
    return torch.cat([tensor, tensor.new_zeros(len(tensor), width - tensor.shape[1], *tensor.shape[2:])], 1)


def join_batches(parts: list[GradedBatch]) -> GradedBatch:
    """Rows one after another, padded to the widest, groups renumbered in order of appearance."""
    width = max(part.rollouts.tokens.shape[1] for part in parts)
    groups: list[Tensor] = []
    seen = 0
    for part in parts:
        known, inverse = torch.unique(part.rollouts.group, return_inverse=True)
        groups.append(inverse + seen)
        seen += len(known)

    def joined(tensors: list[Tensor]) -> Tensor:
        return torch.cat([_widen(tensor, width) for tensor in tensors])

    hidden = [part.evidence.hidden for part in parts if part.evidence.hidden is not None]
    return GradedBatch(
        problems=[problem for part in parts for problem in part.problems],
        rollouts=Rollouts(
            prompts=tuple(prompt for part in parts for prompt in part.rollouts.prompts),
            tokens=joined([part.rollouts.tokens for part in parts]),
            mask=joined([part.rollouts.mask for part in parts]),
            group=torch.cat(groups),
            behavior_logp=joined([part.rollouts.behavior_logp for part in parts]),
            finished=torch.cat([part.rollouts.finished for part in parts]),
        ),
        evidence=TokenScores(
            joined([part.evidence.logp for part in parts]),
            joined([part.evidence.entropy for part in parts]),
            joined(hidden) if hidden else None,
        ),
        score=torch.cat([part.score for part in parts]),
        rollouts_used=sum(part.rollouts_used for part in parts),
        parts={name: torch.cat([part.parts[name] for part in parts]) for name in parts[0].parts},
        ungraded=sum((Counter(part.ungraded) for part in parts), Counter()),
    )


def _round(
    policy: Policy,
    task: Task,
    config: TrainConfig,
    count: int,
    step: int,
    attempt: int,
    watch: Stopwatch,
    keep_hidden: bool,
    score_beside: Score | None = None,
) -> GradedBatch:
    problems = task.problems(count, split="train", seed=derive_seed(config.seed, "prompts", step, attempt))
    if config.source == "demonstrations":
        return _demonstrated(policy, task, config, problems, watch, seed=derive_seed(config.seed, "demonstrations", step))
    with watch.stage("sample"):
        rollouts, evidence = generate(
            policy,
            task,
            problems,
            group_size=config.sampling.group_size,
            max_new_tokens=config.sampling.max_new_tokens,
            seed=derive_seed(config.seed, "sample", step, attempt),
            temperature=config.sampling.temperature,
            keep_hidden=keep_hidden,
            dtype=config.dtype,
        )
    if score_beside is None:
        with watch.stage("grade"):
            score, reasons = grade_with_reasons(policy, task, problems, rollouts)
    else:
        with score_while_grading(partial(score_beside, rollouts)) as scoring:
            with watch.stage("grade"):
                score, reasons = grade_with_reasons(policy, task, problems, rollouts)
            with watch.stage("score"):
                evidence = scoring.result()
    if config.filter_groups:
        # An infinite reward makes its group look as if all were alike; it must be refused, not left out.
        check_scores(score)
    parts = reward_parts(policy, rollouts, score, limit=config.sampling.max_new_tokens)
    return GradedBatch(problems, rollouts, evidence, score, len(score), parts, reasons, score_beside is not None)


def _demonstrated(policy: Policy, task: Task, config: TrainConfig, problems: list[Problem], watch: Stopwatch, *, seed: int) -> GradedBatch:
    """A demonstration that the verifier does not take for right teaches nothing and is told of, as one that cannot be graded."""
    with watch.stage("sample"):
        rollouts = demonstrated(policy, task, problems, config, seed=seed)
    with watch.stage("grade"):
        score, reasons = grade_with_reasons(policy, task, problems, rollouts)
    cut = ~rollouts.finished
    wrong = (score < RIGHT) & ~cut
    reasons = Counter(reasons) + Counter({"the demonstration is not graded right": int(wrong.sum())})
    reasons += Counter({"the demonstration is longer than sampling.max_new_tokens": int((cut & ~score.isnan()).sum())})
    unknown = torch.zeros(rollouts.mask.shape, dtype=score.dtype, device=score.device)
    score = score.where(~(wrong | cut), torch.nan)
    parts = reward_parts(policy, rollouts, score, limit=config.sampling.max_new_tokens)
    return GradedBatch(problems, rollouts, TokenScores(unknown, unknown, None), score, 0, parts, reasons)


def _mixed_only(batch: GradedBatch) -> GradedBatch:
    """The groups whose graded scores differ."""
    spread = group_statistics(batch.score, batch.rollouts.group).std > 0
    kept = [group for group in range(len(batch.problems)) if bool(spread[batch.rollouts.group == group].any())]
    rows = torch.isin(batch.rollouts.group, torch.tensor(kept, device=spread.device)).nonzero()[:, 0]
    logp, entropy, hidden, _ = batch.evidence
    return batch._replace(
        problems=[batch.problems[group] for group in kept],
        rollouts=batch.rollouts.select(rows),
        evidence=TokenScores(logp[rows], entropy[rows], None if hidden is None else hidden[rows]),
        score=batch.score[rows],
        parts={name: value[rows] for name, value in batch.parts.items()},
    )


def _both_at_once(policy: Policy, task: Task) -> bool:
    """A GPU and child processes do not take each other's time; a verifier in this process may want the main thread to itself."""
    return policy.device.type == "cuda" and isinstance(task, BatchGrading)


def collect(
    policy: Policy, task: Task, config: TrainConfig, *, step: int, watch: Stopwatch, keep_hidden: bool, score: Score | None = None
) -> GradedBatch:
    """One batch of graded rollouts. With `filter_groups` it may hold fewer groups than asked, if retries run out.

    `score` is the scoring pass, where there will be one: a GPU takes it while child processes grade.
    """
    missing = config.sampling.prompts
    if not config.filter_groups:
        return _round(policy, task, config, missing, step, 0, watch, keep_hidden, score if _both_at_once(policy, task) else None)
    kept: list[GradedBatch] = []
    for attempt in range(1 + config.filter_retries):
        kept.append(_mixed_only(_round(policy, task, config, missing, step, attempt, watch, keep_hidden)))
        missing -= len(kept[-1].problems)
        if missing == 0:
            break
    return join_batches(kept)

"""Sample and grade one batch; with dynamic sampling, replace groups whose scores are all equal.

On a GPU, tokens are scored in a thread while child processes grade responses. Grading stays in the main thread, where a stop
signal interrupts it; a scoring pass is short enough to wait for.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.masked import group_statistics
from tokencredit.pipeline.credit import NOTHING_SAMPLED, ExtraEvidence
from tokencredit.pipeline.guards import check_scores
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.generate import demonstrated, generate
from tokencredit.rollout.grading import RIGHT, bonus, grade_with_reasons, part_means, reward_parts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import BatchGrading, Problem, Task
from tokencredit.timing import Stopwatch
from tokencredit.types import Rollouts, TokenScores

Found = TypeVar("Found")


@contextmanager
def score_while_grading(work: Callable[[], Found]) -> Iterator[Future[Found]]:
    """Run `work` concurrently with the block, which waits for it; `result()` raises what `work` raised."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="scoring") as one_thread:
        yield one_thread.submit(work)


class CollectedBatch(NamedTuple):
    """Sampled, graded and scored rollouts: the input of credit, plan and update."""

    problems: Sequence[Problem]
    """`problems[g]` is the problem of group g."""
    rollouts: Rollouts
    score: Float[Tensor, " seq"]
    evidence: TokenScores
    """The sampler's evidence for every token, until a scoring pass replaces it."""
    rollouts_used: int
    """All sampled responses, discarded ones included."""
    responses: int
    """The responses that were sampled and graded for training, without those of extra evidence."""
    parts: Mapping[str, Float[Tensor, " seq"]] = {}
    """The parts of each response's reward."""
    ungraded: Mapping[str, int] = {}
    """Reasons why responses could not be graded, with counts over all sampled responses."""
    scored: bool = False
    """Whether the evidence already comes from a scoring pass."""
    reference_logp: Float[Tensor, "seq tok"] | None = None
    sampled: ExtraEvidence = NOTHING_SAMPLED
    bonus: Float[Tensor, " seq"] | None = None
    """Reward of a response in addition to its score."""
    extra: Mapping[str, float] = {}
    """Numbers to log: means of the reward parts, and counts of extra evidence."""

    def without_hidden(self) -> "CollectedBatch":
        """Hidden states are the largest part of a batch, and nothing needs them once the credit is assigned."""
        return self._replace(evidence=self.evidence._replace(hidden=None, features=None))


Score = Callable[[Rollouts], TokenScores]


def _widen(tensor: Tensor, width: int) -> Tensor:
    """Pad the token axis, the second, on the right."""
    return torch.cat([tensor, tensor.new_zeros(len(tensor), width - tensor.shape[1], *tensor.shape[2:])], 1)


def join_batches(parts: list[CollectedBatch]) -> CollectedBatch:
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
    return CollectedBatch(
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
        responses=sum(part.responses for part in parts),
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
    score_while: Score | None = None,
) -> CollectedBatch:
    problems = task.problems(count, split="train", seed=derive_seed(config.seed, "prompts", step, attempt))
    if config.source == "demonstrations":
        return _demonstrated(policy, task, config, problems, watch, seed=derive_seed(config.seed, "demonstrations", step))
    with watch.stage("sample"):
        params = SamplingParams.from_config(config, seed=derive_seed(config.seed, "sample", step, attempt))
        rollouts, evidence = generate(policy, task, problems, replace(params, keep_hidden=keep_hidden))
    if score_while is None:
        with watch.stage("grade"):
            score, reasons = grade_with_reasons(policy, task, problems, rollouts)
    else:
        with score_while_grading(partial(score_while, rollouts)) as scoring:
            with watch.stage("grade"):
                score, reasons = grade_with_reasons(policy, task, problems, rollouts)
            with watch.stage("score"):
                evidence = scoring.result()
    if config.filter_groups:
        # An infinite reward makes the spread of its group NaN, so the group would be dropped; it must be refused instead.
        check_scores(score)
    parts = reward_parts(policy, rollouts, score, limit=config.sampling.max_new_tokens)
    count = len(score)
    return CollectedBatch(problems, rollouts, score, evidence, count, count, parts, reasons, score_while is not None)


def _demonstrated(
    policy: Policy, task: Task, config: TrainConfig, problems: list[Problem], watch: Stopwatch, *, seed: int
) -> CollectedBatch:
    """Demonstrations as rollouts; one that the verifier does not grade as right is counted as ungraded."""
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
    return CollectedBatch(problems, rollouts, score, TokenScores(unknown, unknown, None), 0, len(problems), parts, reasons)


def _with_mixed_scores(batch: CollectedBatch) -> CollectedBatch:
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


def _can_score_while_grading(policy: Policy, task: Task) -> bool:
    """A GPU and child processes do not compete; a verifier in this process may need the main thread alone."""
    return policy.device.type == "cuda" and isinstance(task, BatchGrading)


def collect_rollouts(
    policy: Policy, task: Task, config: TrainConfig, *, step: int, watch: Stopwatch, keep_hidden: bool, score: Score | None = None
) -> CollectedBatch:
    """One batch of graded rollouts; with `filter_groups` it has fewer groups than configured when the retries run out.

    `score` is the scoring pass, if the run needs one: a GPU runs it while child processes grade.
    """
    missing = config.sampling.prompts
    if not config.filter_groups:
        batch = _round(
            policy, task, config, missing, step, 0, watch, keep_hidden, score if _can_score_while_grading(policy, task) else None
        )
    else:
        kept: list[CollectedBatch] = []
        for attempt in range(1 + config.filter_retries):
            kept.append(_with_mixed_scores(_round(policy, task, config, missing, step, attempt, watch, keep_hidden)))
            missing -= len(kept[-1].problems)
            if missing == 0:
                break
        batch = join_batches(kept)
    return batch._replace(bonus=bonus(batch.parts, config.reward), extra=part_means(batch.parts))

"""A policy put to a task without being trained: how often it is right, how sure that is, and what its responses are like."""

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
"""Responses sampled together: few enough that a person sees it go on. The draws of a seed depend on it."""

Notify = Callable[[int], None]
"""Told how many problems are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    problems: int
    samples: int
    greedy: Estimate
    pass_at: Mapping[int, Estimate]
    """k -> share of problems that the best of k samples solves; 1 is the share of right samples."""
    mixed: Estimate
    """Share of groups whose scores differ: the others teach nothing to a method that compares siblings."""
    group_size: int
    """Of those groups: sampling.siblings, or the number of samples where that is smaller."""
    length: float
    """Mean tokens of a sampled response."""
    cut: float
    """Share of sampled responses that reached the length limit."""
    entropy: float
    """Mean over sampled tokens, in nats, at the temperature of sampling."""
    parts: Mapping[str, float]
    """Means of the reward's parts; rollout/grading.py says what each is."""
    ungraded: float
    """Share of sampled responses that could not be graded; they count as wrong."""
    reasons: Mapping[str, int]
    answers: int
    """Different gold answers."""
    commonest: float
    """Share of problems whose gold answer is the most frequent one: what always giving it would earn."""
    tokens: int
    """Sampled in all, greedy responses included."""
    sampling_seconds: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        told["pass_at"] = {str(k): estimate._asdict() for k, estimate in self.pass_at.items()}
        return told | {name: getattr(self, name)._asdict() for name in ("greedy", "mixed")} | {"reasons": dict(self.reasons)}


class _Piece(NamedTuple):
    """What one batch of problems gave."""

    score: torch.Tensor
    greedy: torch.Tensor
    drawn: Sampled
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
    tell: Notify = lambda done: None,
    keep: list[dict[str, Any]] | None = None,
) -> Measured:
    """The same numbers for the same seed. Rows of a rollout file, one per sampled response, are appended to `keep`."""
    began, at_once = time.perf_counter(), max(1, ROWS_AT_ONCE // samples)
    pieces: list[_Piece] = []
    for start in range(0, len(problems), at_once):
        asked = problems[start : start + at_once]
        pieces.append(_piece(policy, task, asked, config, samples=samples, seed=derive_seed(config.seed, "evaluate", start)))
        if keep is not None:
            keep += _rows(policy, asked, pieces[-1], first=start)
        tell(start + len(asked))
    score, answers = torch.cat([piece.score for piece in pieces]), Counter(gold_answer(task, problem) for problem in problems)
    right = (score >= RIGHT).sum(1).tolist()
    size = min(samples, config.sampling.siblings)
    mask = [piece.drawn.rollouts.mask for piece in pieces]
    drawn = sum(int(one.sum()) for one in mask)
    return Measured(
        problems=len(problems),
        samples=samples,
        greedy=over_problems((torch.cat([piece.greedy for piece in pieces]) >= RIGHT).double().tolist(), 1),
        pass_at={k: over_problems([pass_at_k(count, samples, k) for count in right], samples) for k in powers_of_two(samples)},
        mixed=over_problems([mixed_at(row, size) for row in score.tolist()], samples),
        group_size=size,
        length=drawn / score.numel(),
        cut=sum(int((~piece.drawn.rollouts.finished).sum()) for piece in pieces) / score.numel(),
        entropy=sum(float(piece.drawn.evidence.entropy.double().sum()) for piece in pieces) / max(1, drawn),
        parts={name: _mean(torch.cat([piece.parts[name] for piece in pieces])) for name in pieces[0].parts},
        ungraded=float(score.isnan().double().mean()),
        reasons=sum((Counter(piece.reasons) for piece in pieces), Counter()),
        answers=len(answers),
        commonest=max(answers.values()) / len(problems),
        tokens=sum(piece.tokens for piece in pieces),
        sampling_seconds=sum(piece.seconds for piece in pieces),
        seconds=time.perf_counter() - began,
    )


def _piece(policy: Policy, task: Task, asked: Sequence[Problem], config: TrainConfig, *, samples: int, seed: int) -> _Piece:
    chosen, began = config.sampling, time.perf_counter()
    params = SamplingParams.from_config(config, seed=seed, group_size=samples)
    drawn = generate(policy, task, asked, params)
    greedy = generate(policy, task, asked, params.greedily()).rollouts
    seconds = time.perf_counter() - began
    graded = grade_with_reasons(policy, task, asked, drawn.rollouts)
    return _Piece(
        graded.score.view(len(asked), samples),
        grade_rollouts(policy, task, asked, greedy),
        drawn,
        graded.reasons,
        reward_parts(policy, drawn.rollouts, graded.score, limit=chosen.max_new_tokens),
        int(drawn.rollouts.mask.sum()) + int(greedy.mask.sum()),
        seconds,
    )


def _mean(part: torch.Tensor) -> float:
    """Over the responses that have one: nobody can tell whether an ungraded response is right."""
    return float(part.double().nanmean()) if not bool(part.isnan().all()) else 0.0


def _rows(policy: Policy, asked: Sequence[Problem], piece: _Piece, *, first: int) -> list[dict[str, Any]]:
    rollouts, score = piece.drawn.rollouts, piece.score.flatten().tolist()
    extent = response_extent(rollouts.mask).tolist()
    return [
        {
            "group": first + group,
            "prompt": asked[group].prompt,
            "prompt_ids": list(rollouts.prompts[row]),
            "response": response_text(policy, rollouts, row),
            "response_ids": rollouts.tokens[row, : extent[row]].tolist(),
            "score": score[row],
            "logp": rollouts.behavior_logp[row, : extent[row]].tolist(),
            "mask": rollouts.mask[row, : extent[row]].tolist(),
            "finished": bool(rollouts.finished[row]),
            "answer": asked[group].answer,
        }
        for row, group in enumerate(rollouts.group.tolist())
    ]

"""Monte-Carlo value of response prefixes: choose branch points, sample continuations, grade prefix plus continuation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.credit import ProcessCredit
from tokencredit.config.train import TrainConfig
from tokencredit.masked import group_statistics
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.generate import ROWS_AT_ONCE
from tokencredit.rollout.sampler import sample
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task, marks_steps, verdicts
from tokencredit.types import Rollouts


class BranchPoint(NamedTuple):
    """The prefix of response `row` that ends just before its token at `position`."""

    row: int
    position: int


def every_few_tokens(length: int, every: int) -> list[int]:
    """Positions 0 < t < length that are multiples of `every`."""
    return list(range(every, length, every))


def starts_in_tokens(starts: Sequence[int], pieces: Sequence[str]) -> list[int]:
    """Character offsets of step starts -> the first token that begins there or later, without the start of the response."""
    positions: list[int] = []
    at = 0
    wanted = sorted(starts)
    for position, piece in enumerate(pieces):
        reached = [start for start in wanted if start <= at]
        wanted = wanted[len(reached) :]
        if reached and position > 0:
            positions.append(position)
        at += len(piece)
    return positions


def within_budget(points: Sequence[BranchPoint], *, continuations: int, budget: int | None, seed: int) -> list[BranchPoint]:
    """All points, or a random subset that fits the budget, in order."""
    affordable = len(points) if budget is None else min(len(points), budget // continuations)
    return sorted(Random(seed).sample(list(points), affordable))


def prefix_values(
    rollouts: Rollouts, points: Sequence[BranchPoint], value_of: Callable[[Sequence[BranchPoint]], Float[Tensor, " point"]]
) -> Float[Tensor, "seq tok"]:
    """Probability of success before each token; NaN without a branch."""
    values = torch.full(rollouts.mask.shape, torch.nan, dtype=torch.float64, device=rollouts.mask.device)
    if points:
        rows, positions = (torch.tensor(column, device=values.device) for column in zip(*points, strict=True))
        values[rows, positions] = value_of(points).to(values)
    return values


def branch_points(
    policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts, score: Tensor, choice: ProcessCredit, *, seed: int
) -> list[BranchPoint]:
    """Branch points of the credit method, at step starts or every few tokens, in responses that can receive credit."""
    spread = group_statistics(score, rollouts.group).std > 0
    branched = ~score.isnan() if choice.dead_groups == "branch" else ~score.isnan() & spread
    points: list[BranchPoint] = []
    tokens, mask, groups = rollouts.tokens.cpu(), rollouts.mask.cpu(), rollouts.group.tolist()
    for row in branched.nonzero()[:, 0].tolist():
        columns = mask[row].nonzero()[:, 0].tolist()
        ids = tokens[row, columns].tolist()
        if choice.boundary == "tokens":
            positions = every_few_tokens(len(ids), choice.every)
        else:
            assert marks_steps(task)
            problem = problems[groups[row]]
            text = policy.decode(ids)
            start, end = policy.prompting.answer_in(text)
            positions = starts_in_tokens([start + at for at in task.step_starts(problem, text[start:end])], policy.pieces(ids))
        points += [BranchPoint(row, columns[position]) for position in positions]
    return within_budget(points, continuations=choice.continuations, budget=choice.budget, seed=seed)


def solve_rates(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    points: Sequence[BranchPoint],
    config: TrainConfig,
    *,
    continuations: int,
    seed: int,
) -> Tensor:
    """Mean score of `continuations` responses that begin with each prefix; ungraded continuations are left out."""
    limit = config.sampling.max_new_tokens
    # Prefixes of similar length share a call, so little of it is padding; the order of `points` does not change the batches.
    order = sorted(range(len(points)), key=lambda index: (points[index].position, points[index].row))
    at_once = max(1, ROWS_AT_ONCE // continuations)
    rates = torch.zeros(len(points), dtype=torch.float64)
    tokens, groups = rollouts.tokens.cpu(), rollouts.group.tolist()
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        prefixes = [tokens[points[index].row, : points[index].position].tolist() for index in chosen]
        prompts = [(*rollouts.prompts[points[index].row], *prefix) for index, prefix in zip(chosen, prefixes, strict=True)]
        params = SamplingParams.from_config(config, seed=derive_seed(seed, "continuations", start), group_size=continuations)
        drawn = sample(policy, prompts, replace(params, max_new_tokens=limit - min(len(prefix) for prefix in prefixes))).rollouts
        drawn_tokens, drawn_mask = drawn.tokens.cpu(), drawn.mask.cpu()
        to_grade: list[tuple[Problem, str]] = []
        for offset, (index, prefix) in enumerate(zip(chosen, prefixes, strict=True)):
            problem = problems[groups[points[index].row]]
            rows = range(offset * continuations, (offset + 1) * continuations)
            written = [drawn_tokens[row][drawn_mask[row]].tolist()[: limit - len(prefix)] for row in rows]
            to_grade += [(problem, policy.answer(prefix + tail)) for tail in written]
        scores = [verdict.score for verdict in verdicts(task, to_grade)]
        for offset, index in enumerate(chosen):
            graded = [value for value in scores[offset * continuations : (offset + 1) * continuations] if value == value]
            rates[index] = fmean(graded) if graded else torch.nan
    return rates

"""Evidence about tokens that costs rollouts: Monte-Carlo values, and fresh responses to see drift by. Off unless asked for, and counted."""

import math
from collections.abc import Collection, Sequence
from random import Random
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.diagnose.common import DEAD_BAND
from tokencredit.diagnose.table import TokenTable
from tokencredit.forward.padded import response_extent, score_rows
from tokencredit.policy.policy import Policy
from tokencredit.rollout.branching import BranchPoint, solve_rates
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task
from tokencredit.types import Rollouts


class TokenValues(NamedTuple):
    """Chance of success before and after each token of a table; NaN where it was not sampled."""

    before: Float[Tensor, " tok"]
    after: Float[Tensor, " tok"]


class FreshResponses(NamedTuple):
    table: TokenTable
    change: Float[Tensor, " tok"]


class MonteCarloEvidence(NamedTuple):
    value: TokenValues | None = None
    drift: FreshResponses | None = None
    rollouts_used: int = 0


NOTHING_SAMPLED = MonteCarloEvidence()


def sample_evidence(
    before: Policy,
    after: Policy,
    task: Task,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    table: TokenTable,
    change: Float[Tensor, " tok"],
    config: TrainConfig,
    *,
    seed: int,
    only: Collection[str],
) -> MonteCarloEvidence:
    """What the budgets pay for and the findings asked for need; nothing by default."""
    knobs = config.diagnose
    value, drift, used = None, None, 0
    if knobs.value_budget and {"value", "tax"} & set(only):
        chosen = choose_tokens(table, change, count=knobs.value_budget // (2 * knobs.value_continuations), seed=derive_seed(seed, "choose"))
        value, sampled = _token_values(before, task, problems, rollouts, table, chosen, config, seed=derive_seed(seed, "value"))
        used += sampled
    if knobs.drift_budget and "drift" in only:
        drift, sampled = _fresh_responses(before, after, task, problems, config, seed=derive_seed(seed, "fresh"))
        used += sampled
    return MonteCarloEvidence(value, drift, used)


def choose_tokens(table: TokenTable, change: Float[Tensor, " tok"], *, count: int, seed: int) -> list[int]:
    """As many boosted as suppressed tokens, of positive and of negative responses, drawn at random; what one kind lacks the others take."""
    places: dict[tuple[int, bool], list[int]] = {}
    for place, (side, moved) in enumerate(zip(table.side.tolist(), change.tolist(), strict=True)):
        if side != 0 and abs(moved) > DEAD_BAND:
            places.setdefault((side, moved > 0), []).append(place)
    random = Random(seed)
    waiting = [random.sample(kind, len(kind)) for _, kind in sorted(places.items())]
    chosen: list[int] = []
    while len(chosen) < count and any(waiting):
        chosen += [kind.pop() for kind in waiting if kind]
    return sorted(chosen[:count])


def _token_values(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    table: TokenTable,
    chosen: list[int],
    config: TrainConfig,
    *,
    seed: int,
) -> tuple[TokenValues, int]:
    """After the last token of a response there is nothing to sample: its value is what the verifier said."""
    length = response_extent(rollouts.mask).tolist()
    starts = [BranchPoint(int(table.row[place]), int(table.position[place])) for place in chosen]
    wanted = dict.fromkeys(starts)
    wanted |= dict.fromkeys(
        point for start in starts if (point := start._replace(position=start.position + 1)).position < length[start.row]
    )
    points = list(wanted)
    continuations = config.diagnose.value_continuations
    rates = solve_rates(policy, task, problems, rollouts, points, config, continuations=continuations, seed=seed)
    known = dict(zip(points, rates.tolist(), strict=True))
    values = TokenValues(*(torch.full((len(table),), math.nan, dtype=torch.float64) for _ in range(2)))
    for place, start in zip(chosen, starts, strict=True):
        values.before[place] = known[start]
        values.after[place] = known.get(start._replace(position=start.position + 1), float(table.score[place]))
    return values, len(points) * continuations


def _fresh_responses(
    before: Policy, after: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig, *, seed: int
) -> tuple[FreshResponses, int]:
    """New responses of the old policy to the batch's first problems, in whole groups; drift is about pairs of one group."""
    size = min(config.sampling.siblings, config.diagnose.drift_budget)
    asked = list(problems[: max(1, config.diagnose.drift_budget // size)])
    temperature = config.sampling.temperature
    rollouts = generate(
        before,
        task,
        asked,
        group_size=size,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=seed,
        temperature=temperature,
        dtype=config.dtype,
    ).rollouts
    score = grade_rollouts(before, task, asked, rollouts)
    # In full precision, as the microscope measures.
    limits = {"temperature": temperature, "max_tokens": config.optimizer.max_tokens}
    old, new = (score_rows(policy.model, rollouts, **limits) for policy in (before, after))
    row, position = rollouts.mask.cpu().nonzero(as_tuple=True)
    inside = rollouts.mask
    nothing = torch.zeros(len(row), dtype=torch.float64)
    table = TokenTable(
        row=row,
        group=rollouts.group.cpu()[row],
        position=position,
        token=rollouts.tokens.cpu()[row, position],
        text=("",) * len(row),
        token_class=("",) * len(row),
        logp=old.logp[inside].cpu(),
        entropy=old.entropy[inside].cpu(),
        credit=nothing,
        advantage=nothing,
        score=score.cpu()[row],
        optimizer_step=torch.full_like(row, -1),
    )
    return FreshResponses(table, (new.logp - old.logp)[inside].cpu().double()), len(score)

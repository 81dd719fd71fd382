"""Evidence about tokens that costs rollouts: Monte-Carlo values, and fresh responses that show drift. Off by default, and counted."""

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
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.branching import BranchPoint, solve_rates
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task
from tokencredit.types import Rollouts


class TokenValues(NamedTuple):
    """Probability of success before and after each token of a table; NaN where it was not sampled."""

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


class MonteCarlo:
    """Samples token values and fresh responses with the policy from before the update, starting from the batch it wrote."""

    def __init__(self, policy: Policy, task: Task, problems: Sequence[Problem], rollouts: Rollouts, config: TrainConfig) -> None:
        self.policy, self.task, self.problems, self.rollouts, self.config = policy, task, problems, rollouts, config

    def sample(
        self, after: Policy, table: TokenTable, change: Float[Tensor, " tok"], *, seed: int, only: Collection[str]
    ) -> MonteCarloEvidence:
        """Sample what the findings in `only` need, within the budgets; nothing by default. `after` is the updated policy."""
        settings = self.config.diagnose
        value, fresh, used = None, None, 0
        if settings.value_budget and {"value", "tax"} & set(only):
            count = settings.value_budget // (2 * settings.value_continuations)
            chosen = choose_tokens(table, change, count=count, seed=derive_seed(seed, "choose"))
            value, sampled = self.token_values(table, chosen, seed=derive_seed(seed, "value"))
            used += sampled
        if settings.drift_budget and "drift" in only:
            fresh, sampled = self.fresh_responses(after, seed=derive_seed(seed, "fresh"))
            used += sampled
        return MonteCarloEvidence(value, fresh, used)

    def token_values(self, table: TokenTable, chosen: list[int], *, seed: int) -> tuple[TokenValues, int]:
        """Values before and after the chosen tokens, and the rollouts used. The value after a response's last token is its score."""
        length = response_extent(self.rollouts.mask).tolist()
        starts = [BranchPoint(int(table.row[index]), int(table.position[index])) for index in chosen]
        wanted = dict.fromkeys(starts)
        wanted |= dict.fromkeys(
            point for start in starts if (point := start._replace(position=start.position + 1)).position < length[start.row]
        )
        points = list(wanted)
        continuations = self.config.diagnose.value_continuations
        rates = solve_rates(
            self.policy, self.task, self.problems, self.rollouts, points, self.config, continuations=continuations, seed=seed
        )
        known = dict(zip(points, rates.tolist(), strict=True))
        values = TokenValues(*(torch.full((len(table),), math.nan, dtype=torch.float64) for _ in range(2)))
        for index, start in zip(chosen, starts, strict=True):
            values.before[index] = known[start]
            values.after[index] = known.get(start._replace(position=start.position + 1), float(table.score[index]))
        return values, len(points) * continuations

    def fresh_responses(self, after: Policy, *, seed: int) -> tuple[FreshResponses, int]:
        """New responses of the old policy to the batch's first problems, in full groups, because drift compares pairs of one group."""
        before, config = self.policy, self.config
        size = min(config.sampling.siblings, config.diagnose.drift_budget)
        problems = list(self.problems[: max(1, config.diagnose.drift_budget // size)])
        temperature = config.sampling.temperature
        rollouts = generate(before, self.task, problems, SamplingParams.from_config(config, seed=seed, group_size=size)).rollouts
        score = grade_rollouts(before, self.task, problems, rollouts)
        # In full precision, like the microscope.
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


def choose_tokens(table: TokenTable, change: Float[Tensor, " tok"], *, count: int, seed: int) -> list[int]:
    """Random tokens, balanced over boosted and suppressed ones of positive and negative responses.

    Where one kind has too few tokens, the others fill the count.
    """
    by_kind: dict[tuple[int, bool], list[int]] = {}
    for index, (side, moved) in enumerate(zip(table.side.tolist(), change.tolist(), strict=True)):
        if side != 0 and abs(moved) > DEAD_BAND:
            by_kind.setdefault((side, moved > 0), []).append(index)
    random = Random(seed)
    waiting = [random.sample(kind, len(kind)) for _, kind in sorted(by_kind.items())]
    chosen: list[int] = []
    while len(chosen) < count and any(waiting):
        chosen += [kind.pop() for kind in waiting if kind]
    return sorted(chosen[:count])

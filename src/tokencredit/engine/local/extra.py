"""Evidence that costs rollouts: revisions and prefix values, sampled only where a stage asks for them, and counted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from tokencredit.config import TrainConfig
from tokencredit.engine.local.continuations import branch_points, solve_rates
from tokencredit.engine.local.policy import Policy
from tokencredit.engine.local.revise import Revisions, revise
from tokencredit.probe.branch import BranchPoint, prefix_values
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task
from tokencredit.types import Rollouts


class ExtraEvidence(NamedTuple):
    revisions: Revisions | None = None
    prefix_value: Tensor | None = None
    rollouts_used: int = 0
    metrics: Mapping[str, float] = {}


def gather_extra(
    policy: Policy,
    task: Task,
    config: TrainConfig,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    score: Tensor,
    *,
    seed: int,
) -> ExtraEvidence:
    """What the recipe's shape and credit need beyond the rollouts themselves; nothing for most recipes."""
    extra = ExtraEvidence()
    if config.shape.type == "ibpo":
        revisions = revise(policy, task, problems, rollouts, score, config.shape, config, seed=derive_seed(seed, "revise"))
        extra = extra._replace(
            revisions=revisions,
            rollouts_used=extra.rollouts_used + revisions.tried,
            metrics={
                **extra.metrics,
                "revisions": revisions.tried,
                "revisions_right": revisions.succeeded,
                "revisions_identical": revisions.identical,
            },
        )
    if config.credit.type == "process":
        choice = config.credit
        points = branch_points(policy, task, problems, rollouts, score, choice, seed=derive_seed(seed, "branch"))

        def value_of(chosen: Sequence[BranchPoint]) -> Tensor:
            return solve_rates(
                policy, task, problems, rollouts, chosen, config, continuations=choice.continuations, seed=derive_seed(seed, "value")
            )

        used = len(points) * choice.continuations
        extra = extra._replace(
            prefix_value=prefix_values(rollouts, points, value_of),
            rollouts_used=extra.rollouts_used + used,
            metrics={**extra.metrics, "branch_points": len(points), "continuations": used},
        )
    return extra

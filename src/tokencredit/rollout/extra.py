"""Evidence that costs rollouts: revisions, prefix values, greedy responses. Sampled only where a stage asks for it, and counted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from tokencredit.config import IbpoShape, ProcessCredit
from tokencredit.config.train import TrainConfig
from tokencredit.pipeline.build import needed_evidence
from tokencredit.pipeline.credit import ExtraEvidence
from tokencredit.policy.policy import Policy
from tokencredit.rollout.branching import BranchPoint, branch_points, prefix_values, solve_rates
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.revision import Revisions, revise
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task
from tokencredit.types import Rollouts


class ExtraRollouts(NamedTuple):
    revisions: Revisions | None = None
    prefix_value: Tensor | None = None
    greedy_score: Tensor | None = None
    rollouts_used: int = 0
    metrics: Mapping[str, float] = {}

    @property
    def sampled(self) -> ExtraEvidence:
        """The part that stages see."""
        repaired, edited = (None, None) if self.revisions is None else (self.revisions.repaired, self.revisions.edited)
        return ExtraEvidence(repaired, edited, self.prefix_value, self.greedy_score)

    def with_counts(self, used: int, **metrics: float) -> "ExtraRollouts":
        return self._replace(rollouts_used=self.rollouts_used + used, metrics={**self.metrics, **metrics})


def gather_extra(
    policy: Policy, task: Task, config: TrainConfig, problems: Sequence[Problem], rollouts: Rollouts, score: Tensor, *, seed: int
) -> ExtraRollouts:
    """What the recipe's stages need beyond the rollouts themselves; nothing for most recipes."""
    needs = needed_evidence(config)
    extra = ExtraRollouts()
    if "revisions" in needs:
        assert isinstance(config.shape, IbpoShape)
        revisions = revise(policy, task, problems, rollouts, score, config.shape, config, seed=derive_seed(seed, "revise"))
        extra = extra._replace(revisions=revisions).with_counts(
            revisions.tried,
            revisions=revisions.tried,
            revisions_right=revisions.succeeded,
            revisions_identical=revisions.identical,
        )
    if "prefix-values" in needs:
        choice = config.credit
        assert isinstance(choice, ProcessCredit)
        points = branch_points(policy, task, problems, rollouts, score, choice, seed=derive_seed(seed, "branch"))

        def value_of(chosen: Sequence[BranchPoint]) -> Tensor:
            return solve_rates(
                policy, task, problems, rollouts, chosen, config, continuations=choice.continuations, seed=derive_seed(seed, "value")
            )

        used = len(points) * choice.continuations
        values = prefix_values(rollouts, points, value_of)
        extra = extra._replace(prefix_value=values).with_counts(used, branch_points=len(points), continuations=used)
    if "greedy-scores" in needs:
        greedy = greedy_scores(policy, task, problems, config)
        graded = greedy[~greedy.isnan()]
        told = {"greedy_score": float(graded.mean())} if len(graded) else {}
        extra = extra._replace(greedy_score=greedy[rollouts.group]).with_counts(len(problems), greedy_responses=len(problems), **told)
    return extra


def greedy_scores(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> Tensor:
    """What the verifier says of the policy's most probable response to each problem."""
    limit = config.sampling.max_new_tokens
    drawn = generate(policy, task, problems, group_size=1, max_new_tokens=limit, seed=0, greedy=True, dtype=config.dtype)
    return grade_rollouts(policy, task, problems, drawn.rollouts)

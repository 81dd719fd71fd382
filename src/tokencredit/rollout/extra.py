"""Evidence that costs rollouts: revisions, prefix values, greedy responses. Sampled only where a stage needs it, and counted."""

from collections.abc import Sequence

from torch import Tensor

from tokencredit.config import IbpoShape, ProcessCredit
from tokencredit.config.train import TrainConfig
from tokencredit.pipeline.build import needed_evidence
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.branching import BranchPoint, branch_points, prefix_values, solve_rates
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.revision import revise
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task


def sample_extra(policy: Policy, task: Task, config: TrainConfig, batch: CollectedBatch, *, seed: int) -> CollectedBatch:
    """The batch with the evidence that the recipe's stages need beyond the rollouts themselves; most recipes need none."""
    needs = needed_evidence(config)
    problems, rollouts, score = batch.problems, batch.rollouts, batch.score
    found, used, counts = batch.sampled, 0, dict[str, float]()
    if "revisions" in needs:
        assert isinstance(config.shape, IbpoShape)
        revisions = revise(policy, task, problems, rollouts, score, config.shape, config, seed=derive_seed(seed, "revise"))
        found = found._replace(repaired=revisions.repaired, edited=revisions.edited)
        used += revisions.tried
        counts |= {
            "revisions": revisions.tried,
            "revisions_right": revisions.succeeded,
            "revisions_identical": revisions.identical,
        }
    if "prefix-values" in needs:
        choice = config.credit
        assert isinstance(choice, ProcessCredit)
        points = branch_points(policy, task, problems, rollouts, score, choice, seed=derive_seed(seed, "branch"))

        def value_of(chosen: Sequence[BranchPoint]) -> Tensor:
            return solve_rates(
                policy, task, problems, rollouts, chosen, config, continuations=choice.continuations, seed=derive_seed(seed, "value")
            )

        found = found._replace(prefix_value=prefix_values(rollouts, points, value_of))
        continuations = len(points) * choice.continuations
        used += continuations
        counts |= {"branch_points": len(points), "continuations": continuations}
    if "greedy-scores" in needs:
        greedy = greedy_scores(policy, task, problems, config)
        graded = greedy[~greedy.isnan()]
        found = found._replace(greedy_score=greedy[rollouts.group])
        used += len(problems)
        counts |= {"greedy_responses": len(problems)} | ({"greedy_score": float(graded.mean())} if len(graded) else {})
    return batch._replace(sampled=found, rollouts_used=batch.rollouts_used + used, extra={**batch.extra, **counts})


def greedy_scores(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> Tensor:
    """The verifier's score of the greedy response to each problem."""
    drawn = generate(policy, task, problems, SamplingParams.from_config(config, seed=0).greedily())
    return grade_rollouts(policy, task, problems, drawn.rollouts)

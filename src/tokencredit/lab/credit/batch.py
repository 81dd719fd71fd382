"""A batch of groups at the fixed policy: sampled, graded, scored."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import TokenEvidence
from tokencredit.masked import group_statistics
from tokencredit.policy.policy import Policy
from tokencredit.rollout.generate import respond
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.scoring import Pipeline
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task
from tokencredit.types import Rollouts


class Drawn(NamedTuple):
    problems: Sequence[Problem]
    """`problems[g]` is what group g answers."""
    rollouts: Rollouts
    evidence: TokenEvidence
    score: Float[Tensor, " seq"]


def draw_batch(
    policy: Policy, task: Task, config: TrainConfig, *, prompts: int, purpose: str, number: int = 0, keep_hidden: bool = False
) -> Drawn:
    """Training problems. Batches of different purpose or number are independent."""
    problems = task.problems(prompts, split="train", seed=derive_seed(config.seed, f"{purpose}-prompts", number))
    pipeline = Pipeline(config)
    in_a_pass = pipeline.scores_in_a_pass
    rollouts, evidence = respond(
        policy,
        task,
        problems,
        group_size=config.sampling.group_size,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=derive_seed(config.seed, f"{purpose}-sample", number),
        temperature=config.sampling.temperature,
        keep_hidden=keep_hidden and not in_a_pass,
        dtype=config.dtype,
    )
    if in_a_pass:
        evidence = pipeline.score_tokens(policy.model, rollouts, keep_hidden=keep_hidden)
    return Drawn(problems, rollouts, evidence, grade_rollouts(policy, task, problems, rollouts))


class Facts(NamedTuple):
    """What the policy is like, summed over batches."""

    rollouts: int = 0
    right: float = 0.0
    """Sum of scores."""
    graded: int = 0
    groups: int = 0
    mixed: int = 0
    tokens: int = 0
    entropy: float = 0.0
    """Summed over tokens."""

    def with_batch(self, batch: Drawn) -> "Facts":
        graded, mask = ~batch.score.isnan(), batch.rollouts.mask
        spread = group_statistics(batch.score, batch.rollouts.group).std > 0
        return Facts(
            self.rollouts + len(batch.score),
            self.right + float(batch.score[graded].double().sum()),
            self.graded + int(graded.sum()),
            self.groups + len(batch.problems),
            self.mixed + len(torch.unique(batch.rollouts.group[spread])),
            self.tokens + int(mask.sum()),
            self.entropy + float(batch.evidence.entropy[mask].double().sum()),
        )

    def to_json(self) -> dict[str, float | int | None]:
        def per(value: float, count: int) -> float | None:
            return value / count if count else None

        return {
            "rollouts": self.rollouts,
            "accuracy": per(self.right, self.graded),
            "mixed_groups": per(self.mixed, self.groups),
            "entropy": per(self.entropy, self.tokens),
            "length": per(self.tokens, self.rollouts),
        }

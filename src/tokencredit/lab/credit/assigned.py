"""What a recipe gives every token of a batch: credit, and the kappa that its first optimizer step sends back."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import row_cost
from tokencredit.lab.credit.batch import Drawn
from tokencredit.lab.credit.recipes import Contender
from tokencredit.optim.update import step_kappa
from tokencredit.pipeline.build import needed_evidence
from tokencredit.pipeline.credit import StageState
from tokencredit.pipeline.microbatch import step_seed
from tokencredit.policy.policy import Policy
from tokencredit.rollout.extra import ExtraEvidence, gather_extra
from tokencredit.rollout.scoring import Pipeline, facts_of
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Task
from tokencredit.trainer.preflight import check_fit


class Assigned(NamedTuple):
    credit: Float[Tensor, "seq tok"]
    advantage: Float[Tensor, " seq"]
    ascent: Float[Tensor, "seq tok"]
    """-kappa of one optimizer step over the whole batch: the gradient of what it maximises by each log-prob."""
    sampled: int
    """Rollouts beyond the batch that the recipe's evidence took."""


class Assigning:
    """Every contender's turn at one batch. What recipes sample beside it is sampled once for all that ask alike."""

    def __init__(self, policy: Policy, task: Task, batch: Drawn, config: TrainConfig, *, seed: int) -> None:
        self.policy, self.task, self.batch, self.config, self.seed = policy, task, batch, config, seed
        self._sampled: dict[str, ExtraEvidence] = {}

    def why_not(self, contender: Contender) -> str | None:
        """Why model and task do not suit the recipe; None: they do."""
        try:
            check_fit(self.policy, self.task, self.batch.problems, contender.on(self.config))
        except ConfigError as problem:
            return str(problem)
        return None

    def extra(self, chosen: TrainConfig) -> ExtraEvidence:
        needs = needed_evidence(chosen) - {"logp", "entropy", "hidden"}
        asked = {"shape": chosen.shape if "revisions" in needs else None, "credit": chosen.credit if "prefix-values" in needs else None}
        key = f"{sorted(needs)} {asked}"
        if key not in self._sampled:
            batch, seed = self.batch, derive_seed(self.seed, "extra")
            self._sampled[key] = gather_extra(self.policy, self.task, chosen, batch.problems, batch.rollouts, batch.score, seed=seed)
        return self._sampled[key]

    def __call__(self, contender: Contender) -> Assigned | str:
        """A str says why this recipe cannot be computed."""
        try:
            return self._assign(contender.on(self.config))
        except ConfigError as problem:
            return str(problem)

    def _assign(self, chosen: TrainConfig) -> Assigned:
        """At the sampling policy every ratio is 1, and methods that remember start afresh."""
        batch, seed, pipeline, extra = self.batch, self.seed, Pipeline(chosen), self.extra(chosen)
        scored = pipeline.shape_reward(batch.rollouts, batch.score, batch.evidence.logp, None, extra.sampled)
        credited = pipeline.credit_tokens(
            scored,
            batch.evidence,
            StageState(),
            seed=derive_seed(seed, "credit"),
            facts=facts_of(self.policy),
            sampled=extra.sampled,
        ).credited
        plan = pipeline.plan(
            credited,
            optimizer_steps=1,
            max_tokens=chosen.optimizer.max_tokens,
            cost=row_cost(batch.rollouts),
            seed=derive_seed(seed, "plan"),
        )
        kappa = torch.zeros_like(credited.old_logp)
        for number, step in enumerate(plan.steps):
            drawing = step_seed(derive_seed(seed, "objective"), number)
            kappa += step_kappa(credited, step, pipeline.objective, credited.old_logp, seed=drawing)
        return Assigned(credited.credit, credited.advantage, -kappa, extra.rollouts_used)

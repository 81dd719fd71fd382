"""A recipe made runnable: graded rollouts in, credited rollouts and a plan out."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.advantage import AdvantageInputs
from tokencredit.build import build_advantage, build_credit, build_objective, build_planner, build_shape
from tokencredit.config import TrainConfig
from tokencredit.credit import CreditInputs, CreditOutcome
from tokencredit.engine.local.policy import Policy
from tokencredit.errors import ConfigError, GuardError
from tokencredit.objective import kl_estimate
from tokencredit.probe.forward import TokenEvidence, gather_evidence, lm_head, row_cost
from tokencredit.shape import kl_penalty
from tokencredit.types import Credited, Rollouts, Scored, StepPlan


class StageState(NamedTuple):
    """What methods remember between steps; JSON values, saved with every checkpoint."""

    advantage: Mapping[str, Any] = {}
    credit: Mapping[str, Any] = {}


class CreditedBatch(NamedTuple):
    credited: Credited
    state: StageState


class Pipeline:
    """The five stages of one configuration, each built once."""

    def __init__(self, config: TrainConfig) -> None:
        limit = config.sampling.max_new_tokens
        self.config = config
        self.shape = build_shape(config, max_length=limit)
        self.advantage = build_advantage(config)
        self.credit = build_credit(config)
        self.objective = build_objective(config, max_length=limit)
        self._make_plan = build_planner(config, self.objective)

    @property
    def scores_in_a_pass(self) -> bool:
        """Cached decoding and a whole-sequence pass agree to rounding; in bfloat16 that rounding is too coarse for ratios."""
        scoring = self.config.scoring
        return scoring == "pass" or (scoring == "auto" and self.config.dtype == "bfloat16")

    @property
    def keeps_hidden(self) -> bool:
        return "hidden" in self.credit.needs

    @property
    def keeps_hidden_while_sampling(self) -> bool:
        return self.keeps_hidden and not self.scores_in_a_pass

    def score_tokens(self, model: PreTrainedModel, rollouts: Rollouts, *, keep_hidden: bool) -> TokenEvidence:
        """Log-prob, entropy, and hidden states where asked for, in one pass."""
        return gather_evidence(
            model,
            rollouts,
            temperature=self.config.sampling.temperature,
            max_tokens=self.config.optimizer.max_tokens,
            keep_hidden=keep_hidden,
            dtype=self.config.dtype,
        )

    def shape_reward(self, rollouts: Rollouts, score: Tensor, logp: Tensor, reference_logp: Tensor | None) -> Scored:
        reward = score.double()
        if self.shape is not None:
            reward = reward + self.shape(rollouts.mask.sum(-1))
        kl = self.config.kl
        if reference_logp is not None and kl.place == "reward":
            divergence = kl_estimate(logp, reference_logp, kind=kl.estimator)
            reward = reward + kl_penalty(divergence, rollouts.loss_mask, beta=kl.beta)
        return Scored(rollouts=rollouts, score=score, reward=reward.to(score.dtype))

    def credit_tokens(
        self,
        policy: Policy,
        scored: Scored,
        evidence: TokenEvidence,
        reference_logp: Tensor | None,
        state: StageState,
        *,
        seed: int,
    ) -> CreditedBatch:
        rollouts = scored.rollouts
        compared = self.advantage(AdvantageInputs(scored.reward, rollouts.group), state.advantage)
        # Whatever a preset makes of an ungraded response among its siblings, its own tokens carry no credit.
        advantage = compared.advantage.where(scored.graded, 0.0)
        if not evidence.logp.isfinite().all():
            raise GuardError("log-probs of the sampled tokens are not finite; the policy has broken down")
        assigned = self._assign(
            CreditInputs(
                advantage=advantage,
                mask=rollouts.loss_mask,
                group=rollouts.group,
                tokens=rollouts.tokens,
                logp=evidence.logp,
                entropy=evidence.entropy,
                seed=seed,
                temperature=self.config.sampling.temperature,
                hidden=evidence.hidden,
                head=cast(Tensor, lm_head(policy.model).weight).detach(),
            ),
            state.credit,
        )
        credited = Credited(
            scored=scored,
            old_logp=evidence.logp,
            entropy=evidence.entropy,
            advantage=advantage,
            coefficient=assigned.coefficient,
            credit=assigned.credit,
            reference_logp=reference_logp,
        )
        return CreditedBatch(credited, StageState(compared.state, assigned.state))

    def check_budget(self, rollouts: Rollouts) -> None:
        longest, budget = max(row_cost(rollouts)), self.config.optimizer.max_tokens
        if longest > budget:
            raise ConfigError(f"optimizer.max_tokens is {budget} but a response with its prompt takes {longest} tokens; give at least that")

    def _assign(self, inputs: CreditInputs, state: Mapping[str, Any]) -> CreditOutcome:
        try:
            return self.credit.assign(inputs, state)
        except ValueError as problem:
            # A method refuses what it cannot do with this model; that is for the user to change.
            raise ConfigError(f"credit {self.config.credit.type!r}: {problem}") from None

    def plan(self, rollouts: Rollouts, *, seed: int) -> StepPlan:
        """Dynamic sampling may come back with fewer groups than asked; then there are fewer optimizer steps, never empty ones."""
        wanted = self.config.optimizer.steps_per_batch
        groups = len(torch.unique(rollouts.group))
        possible = groups if self.config.batching.type == "query-preserved" else len(rollouts.prompts)
        return self._make_plan(
            rollouts.loss_mask.sum(-1),
            rollouts.group,
            optimizer_steps=min(wanted, possible),
            max_tokens=self.config.optimizer.max_tokens,
            seed=seed,
            cost=row_cost(rollouts),
        )

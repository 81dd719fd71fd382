"""A recipe made runnable: graded rollouts in, credited rollouts and a plan out."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.advantage import AdvantageInputs
from tokencredit.build import build_advantage, build_correction, build_credit, build_objective, build_planner, build_shape
from tokencredit.config import TrainConfig
from tokencredit.credit import CreditInputs, CreditOutcome
from tokencredit.engine.local.extra import ExtraEvidence
from tokencredit.engine.local.policy import Policy
from tokencredit.errors import ConfigError, GuardError
from tokencredit.masked import masked_mean
from tokencredit.objective import kl_estimate
from tokencredit.probe.forward import TokenEvidence, gather_evidence, head_weight, row_cost
from tokencredit.shape import ShapeInputs, kl_penalty
from tokencredit.stages import keeps_queries
from tokencredit.types import Credited, Rollouts, Scored, StepPlan

NOTHING_EXTRA = ExtraEvidence()


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
        self.shape = build_shape(config)
        self.correction = build_correction(config)
        self.advantage = build_advantage(config)
        self.credit = build_credit(config)
        self.objective = build_objective(config, max_length=limit)
        self._make_plan = build_planner(config, self.objective)

    @property
    def scores_in_a_pass(self) -> bool:
        """Cached decoding and a whole-sequence pass agree to rounding; in bfloat16 that rounding is too coarse for ratios.

        A correction compares the two, so it needs both.
        """
        config = self.config
        return config.scoring == "pass" or (config.scoring == "auto" and (config.dtype == "bfloat16" or config.correction.kind != "none"))

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

    def shape_reward(
        self, rollouts: Rollouts, score: Tensor, logp: Tensor, reference_logp: Tensor | None, extra: ExtraEvidence = NOTHING_EXTRA
    ) -> Scored:
        repaired = None if extra.revisions is None else extra.revisions.repaired
        inputs = ShapeInputs(score, rollouts.mask.sum(-1), self.config.sampling.max_new_tokens, repaired)
        reward = score.double() + self.shape.adjust(inputs)
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
        extra: ExtraEvidence = NOTHING_EXTRA,
    ) -> CreditedBatch:
        rollouts = scored.rollouts
        compared = self.advantage(
            AdvantageInputs(
                scored.reward,
                rollouts.group,
                length=rollouts.loss_mask.sum(-1),
                score=scored.score,
                entropy=float(masked_mean(evidence.entropy, rollouts.loss_mask)),
                greedy_score=extra.greedy_score,
            ),
            state.advantage,
        )
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
                head=head_weight(policy.model),
                score=scored.score,
                end_tokens=policy.end_tokens,
                edited=None if extra.revisions is None else extra.revisions.edited,
                prefix_value=extra.prefix_value,
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
            correction=self._correct(rollouts, evidence.logp),
        )
        return CreditedBatch(credited, StageState(compared.state, assigned.state))

    def _correct(self, rollouts: Rollouts, old_logp: Tensor) -> Tensor | None:
        if self.correction is None:
            return None
        return self.correction(old_logp, rollouts.behavior_logp.to(old_logp.dtype), rollouts.loss_mask)

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

    def plan(self, credited: Credited, *, seed: int) -> StepPlan:
        """Dynamic sampling may come back with fewer groups than asked; then there are fewer optimizer steps, never empty ones."""
        rollouts = credited.rollouts
        groups = len(torch.unique(rollouts.group))
        possible = groups if keeps_queries(self.config.batching) else len(rollouts.prompts)
        return self._make_plan(
            rollouts.loss_mask.sum(-1),
            rollouts.group,
            advantage=credited.advantage,
            optimizer_steps=min(self.config.optimizer.steps_per_batch, possible),
            max_tokens=self.config.optimizer.max_tokens,
            seed=seed,
            cost=row_cost(rollouts),
        )

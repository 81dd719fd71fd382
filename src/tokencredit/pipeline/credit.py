"""A recipe made runnable in any engine: graded rollouts in, credited rollouts and a plan out."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.advantage import AdvantageInputs, AdvantageOutcome
from tokencredit.config import Recipe
from tokencredit.credit import CreditInputs, CreditOutcome
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import TokenScores
from tokencredit.masked import masked_mean
from tokencredit.objective import kl_estimate
from tokencredit.pipeline.build import build_advantage, build_correction, build_credit, build_objective, build_planner, build_shape
from tokencredit.pipeline.distributed import SINGLE_PROCESS, ProcessGroup, merging, refuse_ranks
from tokencredit.pipeline.guards import check_credit, check_log_probs, check_rewards, check_scores
from tokencredit.seeds import derive_seed
from tokencredit.shape import ShapeInputs, kl_penalty
from tokencredit.types import Credited, Rollouts, Scored, StepPlan


class MethodState(NamedTuple):
    """What methods remember between steps; JSON values, saved with every checkpoint."""

    advantage: Mapping[str, Any] = {}
    credit: Mapping[str, Any] = {}


class ExtraEvidence(NamedTuple):
    """What some recipes sample beside the rollouts; None where nobody asked."""

    repaired: Float[Tensor, " seq"] | None = None
    edited: Bool[Tensor, "seq tok"] | None = None
    prefix_value: Float[Tensor, "seq tok"] | None = None
    greedy_score: Float[Tensor, " seq"] | None = None


class ModelFacts(NamedTuple):
    """What a credit method may want to know of the policy."""

    head: Float[Tensor, "vocab hid"] | None = None
    end_tokens: tuple[int, ...] = ()


class CreditedBatch(NamedTuple):
    credited: Credited
    state: MethodState


NOTHING_SAMPLED = ExtraEvidence()


class Crediting:
    """The five stages of one recipe, each built once."""

    def __init__(self, recipe: Recipe, *, max_new_tokens: int, temperature: float) -> None:
        self.recipe = recipe
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.shape = build_shape(recipe)
        self.correction = build_correction(recipe)
        self.advantage = build_advantage(recipe)
        self.credit = build_credit(recipe)
        self.objective = build_objective(recipe, max_length=max_new_tokens)
        self._make_plan = build_planner(recipe, self.objective)

    @property
    def keeps_hidden(self) -> bool:
        return "hidden" in self.credit.needs

    def shape_reward(
        self,
        rollouts: Rollouts,
        score: Tensor,
        logp: Tensor,
        reference_logp: Tensor | None,
        sampled: ExtraEvidence = NOTHING_SAMPLED,
        bonus: Tensor | None = None,
    ) -> Scored:
        """`bonus` is what a response earns beside its score, whatever the recipe."""
        check_scores(score)
        check_log_probs(logp, rollouts.mask)
        if reference_logp is not None:
            check_log_probs(reference_logp, rollouts.mask, "reference")
        inputs = ShapeInputs(score, rollouts.mask.sum(-1), self.max_new_tokens, sampled.repaired)
        reward = score.double() + self.shape.adjust(inputs)
        if bonus is not None:
            reward = reward + bonus.double()
        kl = self.recipe.kl
        if reference_logp is not None and kl.place == "reward":
            divergence = kl_estimate(logp, reference_logp, kind=kl.estimator)
            reward = reward + kl_penalty(divergence, rollouts.loss_mask, beta=kl.beta)
        check_rewards(reward, score)
        return Scored(rollouts=rollouts, score=score, reward=reward.to(score.dtype))

    def compare(self, scored: Scored, entropy: Tensor, state: Mapping[str, Any], greedy_score: Tensor | None = None) -> AdvantageOutcome:
        """One number per response; whatever a preset makes of an ungraded one among its siblings, its own tokens carry no credit."""
        rollouts = scored.rollouts
        compared = self.advantage(
            AdvantageInputs(
                scored.reward,
                rollouts.group,
                length=rollouts.loss_mask.sum(-1),
                score=scored.score,
                entropy=float(masked_mean(entropy, rollouts.loss_mask)),
                greedy_score=greedy_score,
            ),
            state,
        )
        return AdvantageOutcome(compared.advantage.where(scored.graded, 0.0), compared.state)

    def credit_tokens(
        self,
        scored: Scored,
        evidence: TokenScores,
        state: MethodState,
        *,
        seed: int,
        facts: ModelFacts = ModelFacts(),  # noqa: B008 (frozen and empty)
        reference_logp: Tensor | None = None,
        sampled: ExtraEvidence = NOTHING_SAMPLED,
        own_rows: Int[Tensor, " own"] | None = None,
        ranks: ProcessGroup = SINGLE_PROCESS,
    ) -> CreditedBatch:
        """Every rank gives the whole batch and gets the whole batch back; with several, `own_rows` are those whose hidden states it has."""
        rollouts = scored.rollouts
        check_log_probs(evidence.logp, rollouts.mask)
        compared = self.compare(scored, evidence.entropy, state.advantage, sampled.greedy_score)
        inputs = CreditInputs(
            advantage=compared.advantage,
            mask=rollouts.loss_mask,
            group=rollouts.group,
            tokens=rollouts.tokens,
            logp=evidence.logp,
            entropy=evidence.entropy,
            seed=seed,
            temperature=self.temperature,
            hidden=evidence.hidden if evidence.features is None else evidence.features,
            head=facts.head,
            score=scored.score,
            end_tokens=facts.end_tokens,
            edited=sampled.edited,
            prefix_value=sampled.prefix_value,
        )
        if self.keeps_hidden and own_rows is not None:
            assigned = _whole_batch(self.assign(own_part(inputs, own_rows, ranks), state.credit, ranks), own_rows, rollouts.mask, ranks)
        else:
            assigned = self.assign(inputs, state.credit)
        return CreditedBatch(
            self.collect(scored, evidence, compared.advantage, assigned, reference_logp), MethodState(compared.state, assigned.state)
        )

    def assign(self, inputs: CreditInputs, state: Mapping[str, Any], ranks: ProcessGroup = SINGLE_PROCESS) -> CreditOutcome:
        """With several ranks each gives its own rows, and statistics are merged over all of them."""
        refuse_ranks(self.recipe, ranks.count)
        together = {"reduce": merging(ranks)} if ranks.count > 1 else {}
        try:
            return self.credit.assign(inputs, state, **together)
        except ValueError as problem:
            # A method refuses what it cannot do with this model; that is for the user to change.
            raise ConfigError(f"credit {self.recipe.credit.type!r}: {problem}") from None

    def collect(
        self, scored: Scored, evidence: TokenScores, advantage: Tensor, assigned: CreditOutcome, reference_logp: Tensor | None
    ) -> Credited:
        check_credit(scored, advantage, assigned.coefficient, assigned.credit)
        rollouts, correction = scored.rollouts, None
        if self.correction is not None:
            correction = self.correction(evidence.logp, rollouts.behavior_logp.to(evidence.logp.dtype), rollouts.loss_mask)
        return Credited(
            scored=scored,
            old_logp=evidence.logp,
            entropy=evidence.entropy,
            advantage=advantage,
            coefficient=assigned.coefficient,
            credit=assigned.credit,
            reference_logp=reference_logp,
            correction=correction,
        )

    def plan(
        self, credited: Credited, *, optimizer_steps: int, max_tokens: int, cost: Sequence[int], seed: int, packed: bool = False
    ) -> StepPlan:
        """Dynamic sampling may come back with fewer groups than asked; then there are fewer optimizer steps, never empty ones."""
        rollouts = credited.rollouts
        groups = len(torch.unique(rollouts.group))
        possible = groups if self.recipe.batching.deals_prompts else len(rollouts.prompts)
        return self._make_plan(
            rollouts.loss_mask.sum(-1),
            rollouts.group,
            advantage=credited.advantage,
            optimizer_steps=min(optimizer_steps, possible),
            max_tokens=max_tokens,
            seed=seed,
            cost=cost,
            packed=packed,
        )


def own_part(inputs: CreditInputs, rows: Int[Tensor, " own"], ranks: ProcessGroup) -> CreditInputs:
    """The rows of one rank, as wide as its hidden states, which are there already; draws differ between ranks."""
    width = inputs.hidden.shape[1] if isinstance(inputs.hidden, Tensor) else inputs.mask.shape[1]
    per_row = ("advantage", "mask", "group", "tokens", "logp", "entropy", "score", "edited", "prefix_value")
    own = {name: value[rows] for name in per_row if (value := getattr(inputs, name)) is not None}
    own = {name: value if value.dim() == 1 else value[:, :width] for name, value in own.items()}
    return inputs._replace(seed=inputs.seed if ranks.index == 0 else derive_seed(inputs.seed, "rank", ranks.index), **own)


def _whole_batch(assigned: CreditOutcome, rows: Tensor, mask: Tensor, ranks: ProcessGroup) -> CreditOutcome:
    """Each rank's rows put where they belong in the batch."""
    parts = ranks.gather((rows, assigned.credit, assigned.coefficient))
    placed = torch.cat([part[0] for part in parts]).sort().values
    if not torch.equal(placed, torch.arange(len(mask), device=placed.device)):
        raise ValueError(f"own_rows of all ranks hold {len(placed)} rows for a batch of {len(mask)}; each row must belong to one rank")
    credit = assigned.credit.new_zeros(mask.shape)
    coefficient = None if assigned.coefficient is None else credit.clone()
    for part_rows, part_credit, part_coefficient in parts:
        credit[part_rows, : part_credit.shape[1]] = part_credit
        if coefficient is not None:
            coefficient[part_rows, : part_credit.shape[1]] = part_coefficient
    return CreditOutcome(credit, coefficient, assigned.state)

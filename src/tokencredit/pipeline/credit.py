"""A recipe made runnable in any engine: graded rollouts in, credited rollouts and a plan out.

    credit: shape_reward -> compare (advantage) -> assign (credit) -> Credited
    plan:   Credited -> optimizer steps, micro-batches and denominators

The local trainer, TRL, verl, offline credit and the audit call `credit`. The hooks of other engines see one half of the
sequence at a time and call its steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.advantage import AdvantageInputs, AdvantageOutcome
from tokencredit.config import Recipe
from tokencredit.credit import CreditInputs, CreditOutcome
from tokencredit.errors import ConfigError
from tokencredit.masked import masked_mean
from tokencredit.objective import kl_estimate
from tokencredit.pipeline.build import build_advantage, build_correction, build_credit, build_objective, build_planner, build_shape
from tokencredit.pipeline.distributed import SINGLE_PROCESS, ProcessGroup, merging, refuse_ranks
from tokencredit.pipeline.guards import check_credit, check_log_probs, check_rewards, check_scores
from tokencredit.seeds import derive_seed
from tokencredit.shape import ShapeInputs, kl_penalty
from tokencredit.types import Credited, Rollouts, Scored, StepPlan, TokenScores


class MethodState(NamedTuple):
    """What methods remember between steps; JSON values, saved with every checkpoint."""

    advantage: Mapping[str, Any] = {}
    credit: Mapping[str, Any] = {}


class ExtraEvidence(NamedTuple):
    """What some recipes sample in addition to the rollouts; None where the recipe does not need it."""

    repaired: Float[Tensor, " seq"] | None = None
    edited: Bool[Tensor, "seq tok"] | None = None
    prefix_value: Float[Tensor, "seq tok"] | None = None
    greedy_score: Float[Tensor, " seq"] | None = None


class ModelFacts(NamedTuple):
    """What a credit method may read of the policy itself."""

    head: Float[Tensor, "vocab hid"] | None = None
    """LM-head weight."""
    end_tokens: tuple[int, ...] = ()


NOTHING_SAMPLED = ExtraEvidence()


class BatchEvidence(NamedTuple):
    """What is known about a batch beyond its rollouts and verifier scores; None for what the caller does not have."""

    scores: TokenScores | None = None
    """Without them rewards can be shaped and responses compared, but no token can be credited."""
    reference_logp: Float[Tensor, "seq tok"] | None = None
    extra: ExtraEvidence = NOTHING_SAMPLED
    model: ModelFacts = ModelFacts()


NO_EVIDENCE = BatchEvidence()


def scores_without_entropy(logp: Float[Tensor, "seq tok"]) -> TokenScores:
    """Log-probs that a sampler or another engine reported. Entropies are NaN: not known."""
    return TokenScores(logp, torch.full_like(logp, torch.nan), None)


class OwnRows(NamedTuple):
    """The rows whose hidden states this process holds; the processes of the group together hold each row once."""

    rows: Int[Tensor, " own"]
    ranks: ProcessGroup = SINGLE_PROCESS


RequestCoefficients = Callable[[Float[Tensor, " seq"]], Float[Tensor, "seq tok"]]
"""Advantages of the responses -> coefficients of their tokens, computed by the processes that hold the hidden states."""


class TokenCredit(NamedTuple):
    """Reward, advantage and credit of a batch. `Credited` holds the policy's log-probs and entropies as well."""

    scored: Scored
    advantage: Float[Tensor, " seq"]
    coefficient: Float[Tensor, "seq tok"] | None
    credit: Float[Tensor, "seq tok"]
    state: MethodState


class CreditPipeline:
    """The stages of one recipe, each built once."""

    def __init__(self, recipe: Recipe, *, max_new_tokens: int, temperature: float = 1.0) -> None:
        self.recipe = recipe
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.correction = build_correction(recipe)
        self.objective = build_objective(recipe, max_length=max_new_tokens)
        self._shape = build_shape(recipe)
        self._advantage = build_advantage(recipe)
        self._credit = build_credit(recipe)
        self._make_plan = build_planner(recipe, self.objective)

    @property
    def keeps_hidden(self) -> bool:
        """Whether the recipe's credit reads hidden states, so that the scoring pass must keep them."""
        return "hidden" in self._credit.needs

    def credit(
        self,
        rollouts: Rollouts,
        score: Float[Tensor, " seq"],
        evidence: BatchEvidence,
        state: MethodState = MethodState(),  # noqa: B008 (frozen and empty)
        *,
        seed: int,
        bonus: Float[Tensor, " seq"] | None = None,
        own: OwnRows | None = None,
        request_coefficients: RequestCoefficients | None = None,
    ) -> tuple[Credited, MethodState]:
        """Shape, advantage, credit: the checked record of them, and what the methods remember.

        Every process gives the whole batch and receives the whole batch. Where the hidden states of a recipe that reads
        them are spread over processes, `own` names the rows of this one; where this process has none of them,
        `request_coefficients` gets the coefficients from those that do.
        """
        scored = self.shape_reward(rollouts, score, evidence, bonus)
        found = self.credit_tokens(scored, evidence, state, seed=seed, own=own, request_coefficients=request_coefficients)
        return self.as_credited(found, evidence), found.state

    def shape_reward(
        self,
        rollouts: Rollouts,
        score: Float[Tensor, " seq"],
        evidence: BatchEvidence = NO_EVIDENCE,
        bonus: Float[Tensor, " seq"] | None = None,
    ) -> Scored:
        """`bonus` is added to the reward of a response, whatever the recipe's shape is."""
        check_scores(score)
        logp = None if evidence.scores is None else evidence.scores.logp
        reference_logp = evidence.reference_logp
        if logp is not None:
            check_log_probs(logp, rollouts.mask)
        if reference_logp is not None:
            check_log_probs(reference_logp, rollouts.mask, "reference")
        inputs = ShapeInputs(score, rollouts.mask.sum(-1), self.max_new_tokens, evidence.extra.repaired)
        reward = score.double() + self._shape.adjust(inputs)
        if bonus is not None:
            reward = reward + bonus.double()
        kl = self.recipe.kl
        if logp is not None and reference_logp is not None and kl.place == "reward":
            divergence = kl_estimate(logp, reference_logp, kind=kl.estimator)
            reward = reward + kl_penalty(divergence, rollouts.loss_mask, beta=kl.beta)
        check_rewards(reward, score)
        return Scored(rollouts=rollouts, score=score, reward=reward.to(score.dtype))

    def compare(self, scored: Scored, evidence: BatchEvidence = NO_EVIDENCE, state: Mapping[str, Any] | None = None) -> AdvantageOutcome:
        """One number per response. A preset may count an ungraded response among its siblings; its own tokens carry no credit."""
        rollouts = scored.rollouts
        compared = self._advantage(
            AdvantageInputs(
                scored.reward,
                rollouts.group,
                length=rollouts.loss_mask.sum(-1),
                score=scored.score,
                entropy=None if evidence.scores is None else float(masked_mean(evidence.scores.entropy, rollouts.loss_mask)),
                greedy_score=evidence.extra.greedy_score,
            ),
            {} if state is None else state,
        )
        return AdvantageOutcome(compared.advantage.where(scored.graded, 0.0), compared.state)

    def credit_tokens(
        self,
        scored: Scored,
        evidence: BatchEvidence,
        state: MethodState = MethodState(),  # noqa: B008 (frozen and empty)
        *,
        seed: int,
        own: OwnRows | None = None,
        request_coefficients: RequestCoefficients | None = None,
    ) -> TokenCredit:
        """Advantage and credit, also for log-probs without entropies, of which no `Credited` can be made."""
        rollouts = scored.rollouts
        check_log_probs(_required_scores(evidence).logp, rollouts.mask)
        compared = self.compare(scored, evidence, state.advantage)
        advantage = compared.advantage
        if self.keeps_hidden and request_coefficients is not None:
            coefficient = request_coefficients(advantage).to(advantage.dtype).where(rollouts.loss_mask, 0.0)
            assigned = CreditOutcome(coefficient * advantage[:, None], coefficient, state.credit)
        else:
            inputs = self.credit_inputs(rollouts, advantage, evidence, seed=seed, score=scored.score)
            if self.keeps_hidden and own is not None:
                part = self.assign(own_part(inputs, own.rows, own.ranks), state.credit, own.ranks)
                assigned = _whole_batch(part, own.rows, rollouts.mask, own.ranks)
            else:
                assigned = self.assign(inputs, state.credit)
        return TokenCredit(scored, advantage, assigned.coefficient, assigned.credit, MethodState(compared.state, assigned.state))

    def credit_inputs(
        self,
        rollouts: Rollouts,
        advantage: Float[Tensor, " seq"],
        evidence: BatchEvidence,
        *,
        seed: int,
        score: Float[Tensor, " seq"] | None = None,
    ) -> CreditInputs:
        scores = _required_scores(evidence)
        return CreditInputs(
            advantage=advantage,
            mask=rollouts.loss_mask,
            group=rollouts.group,
            tokens=rollouts.tokens,
            logp=scores.logp,
            entropy=scores.entropy,
            seed=seed,
            temperature=self.temperature,
            hidden=scores.hidden if scores.features is None else scores.features,
            head=evidence.model.head,
            score=score,
            end_tokens=evidence.model.end_tokens,
            edited=evidence.extra.edited,
            prefix_value=evidence.extra.prefix_value,
        )

    def assign(self, inputs: CreditInputs, state: Mapping[str, Any] | None = None, ranks: ProcessGroup = SINGLE_PROCESS) -> CreditOutcome:
        """With several ranks each gives its own rows, and statistics are merged over all of them."""
        together: dict[str, Any] = {}
        if ranks.count > 1:
            refuse_ranks(self.recipe, ranks.count)
            together = {"reduce": merging(ranks)}
        try:
            return self._credit.assign(inputs, {} if state is None else state, **together)
        except ValueError as problem:
            # The method cannot work with this model; the user must change one of them.
            raise ConfigError(f"credit {self.recipe.credit.type!r}: {problem}") from None

    def as_credited(self, found: TokenCredit, evidence: BatchEvidence) -> Credited:
        """The checked record, with the policy's log-probs and entropies and the weights that correct for the sampler."""
        scored, scores, correction = found.scored, _required_scores(evidence), None
        rollouts = scored.rollouts
        check_credit(scored, found.advantage, found.coefficient, found.credit)
        if self.correction is not None:
            correction = self.correction(scores.logp, rollouts.behavior_logp.to(scores.logp.dtype), rollouts.loss_mask)
        return Credited(
            scored=scored,
            old_logp=scores.logp,
            entropy=scores.entropy,
            advantage=found.advantage,
            coefficient=found.coefficient,
            credit=found.credit,
            reference_logp=evidence.reference_logp,
            correction=correction,
        )

    def plan(
        self, credited: Credited, *, optimizer_steps: int, max_tokens: int, cost: Sequence[int], seed: int, packed: bool = False
    ) -> StepPlan:
        """Dynamic sampling may return fewer groups than requested; then there are fewer optimizer steps, never empty ones."""
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


def _required_scores(evidence: BatchEvidence) -> TokenScores:
    if evidence.scores is None:
        raise ValueError("the evidence has no token scores; tokens can be credited only with their log-probs")
    return evidence.scores


def own_part(inputs: CreditInputs, rows: Int[Tensor, " own"], ranks: ProcessGroup) -> CreditInputs:
    """The rows of one rank, as wide as its hidden states, which hold these rows only; random draws differ between ranks."""
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

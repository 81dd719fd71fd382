"""Scored rollouts to credit and a plan, in whatever engine: what is refused, what carries no credit, what is told."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.crediting_cases import GROUP, LENGTH, SCORE, TEMPERATURE, WIDTH, Case, credit_case, crediting_of, made_up_case
from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.config import as_kwargs
from tokencredit.config.resolve import read_recipe
from tokencredit.credit import CREDITS, CreditInputs
from tokencredit.errors import ConfigError, GuardError
from tokencredit.pipeline.credit import BatchEvidence, ExtraEvidence, MethodState
from tokencredit.pipeline.metrics import credit_metrics, state_metrics
from tokencredit.shape import overlong_penalty
from tokencredit.types import Credited, StepPlan

UNGRADED = [row for row, score in enumerate(SCORE) if math.isnan(score)]
STAGES = ("reinforce++", "opo", "fade", "c-rf", "ntf", "forking-tokens", "ktae", "random-lambda")
COST = [length + 1 for length in LENGTH]


def with_evidence(case: Case, **changes: Any) -> Case:
    return case._replace(evidence=case.evidence._replace(**changes))


def planned(recipe: Any, credited: Credited, *, optimizer_steps: int) -> StepPlan:
    return crediting_of(recipe).plan(credited, optimizer_steps=optimizer_steps, max_tokens=100, cost=COST, seed=3)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_log_probs_that_are_no_numbers_stop_the_run(wrong: float) -> None:
    case = made_up_case()
    logp = case.evidence.logp.clone()
    logp[3, 1] = wrong
    with pytest.raises(GuardError, match="log-probs of the sampled tokens are not finite"):
        credit_case(crediting_of("grpo"), with_evidence(case, logp=logp), MethodState())


def test_a_token_that_the_sampler_could_not_score_either_is_no_excuse() -> None:
    """It leaves the loss, but an engine without a sampler's log-probs takes its own for them: both are then broken."""
    case = made_up_case()
    rollouts = case.scored.rollouts
    row, position = (rollouts.mask & ~rollouts.loss_mask).nonzero()[0].tolist()
    logp = case.evidence.logp.clone()
    logp[row, position] = math.nan
    with pytest.raises(GuardError, match=f"log-probs of the sampled tokens are not finite in response {row}"):
        credit_case(crediting_of("grpo"), with_evidence(case, logp=logp), MethodState())


def test_what_a_method_cannot_do_with_a_model_is_for_the_user_to_change() -> None:
    """A model that scales its logits: log-probs are not those of hidden states and head."""
    case, recipe = made_up_case(), {"recipe": "delta", "credit": {"proxy": "head"}}
    with pytest.raises(ConfigError, match=r"credit 'delta': hidden and head give log-probs up to .* away from logp.*use proxy 'row'"):
        credit_case(crediting_of(recipe), case._replace(head=case.head * 3), MethodState())
    with pytest.raises(ConfigError, match="credit 'delta': hidden is missing"):
        crediting_of("delta").credit_tokens(case.scored, BatchEvidence(case.evidence._replace(hidden=None)), seed=0)


@pytest.mark.parametrize("preset", ["tokencredit", "trl", "verl"])
def test_an_ungraded_response_carries_no_credit_whatever_its_siblings_make_of_it(preset: str) -> None:
    """The third counts it as a 0 among its siblings, and would give it an advantage of its own."""
    recipe = {"recipe": "grpo", "advantage": {"preset": preset}}
    credited = credit_case(crediting_of(recipe), made_up_case(), MethodState()).credited
    assert not credited.advantage[UNGRADED].any()
    assert not credited.credit[UNGRADED].any()
    siblings = [row for row in range(len(GROUP)) if GROUP[row] == 4 and row not in UNGRADED]
    counted_as_zero = abs(float(credited.advantage[siblings].sum())) > 0.1
    assert counted_as_zero == (preset == "verl")


def test_rows_of_one_rank_may_be_named_too() -> None:
    """An engine need not ask how many ranks there are."""
    case, made = made_up_case(), crediting_of("delta")
    named, whole = (credit_case(made, case, MethodState(), rows) for rows in (tuple(range(len(GROUP))), None))
    assert torch.equal(named.credited.credit, whole.credited.credit)


@pytest.mark.parametrize("recipe", [*STAGES, {"recipe": "delta", "credit": {"proxy": "head"}}], ids=str)
def test_stages_are_given_what_they_ask_for(recipe: Any) -> None:
    """Against the stages called one by one."""
    case, chosen = made_up_case(), read_recipe(recipe)
    rollouts, evidence, score = case.scored.rollouts, case.evidence, case.scored.score
    loss_tokens = (rollouts.mask & ~rollouts.behavior_logp.isnan()).nonzero().tolist()
    length = torch.tensor([sum(row == own for row, _ in loss_tokens) for own in range(len(GROUP))])
    entropy = sum(float(evidence.entropy[row, token]) for row, token in loss_tokens) / len(loss_tokens)
    compared = ADVANTAGES[chosen.advantage.type](
        AdvantageInputs(score, rollouts.group, length=length, score=score, entropy=entropy), {}, **as_kwargs(chosen.advantage)
    )
    advantage = compared.advantage.where(~score.isnan(), 0.0)
    hidden = evidence.hidden if chosen.credit.type == "delta" else None
    tokens = (rollouts.tokens, evidence.logp, evidence.entropy)
    inputs = CreditInputs(advantage, rollouts.loss_mask, rollouts.group, *tokens, 11, TEMPERATURE, hidden, case.head, score, (0,))
    expected = CREDITS[chosen.credit.type](inputs, {}, **as_kwargs(chosen.credit))
    result = credit_case(crediting_of(recipe), case, MethodState())
    torch.testing.assert_close(result.credited.advantage, advantage, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.credited.credit, expected.credit, rtol=1e-12, atol=1e-12)
    assert result.state.advantage == pytest.approx(compared.state)
    assert torch.equal(result.credited.old_logp, evidence.logp)
    assert torch.equal(result.credited.entropy, evidence.entropy)


def test_what_an_advantage_remembers_comes_back_to_it() -> None:
    """Fade's running solve rate: 2 % of each batch, starting from one half."""
    made, state, rate = crediting_of("fade"), MethodState(), 0.5
    for seed in (0, 1, 2):
        case = made_up_case(seed)
        rate += 0.02 * (float(case.scored.score[case.scored.graded].mean()) - rate)
        state = credit_case(made, case, state).state
        assert state.advantage["solve_rate"] == pytest.approx(rate, rel=1e-12)
    assert state.credit == {}


def test_long_responses_are_measured_with_the_tokens_that_leave_the_loss() -> None:
    case = made_up_case()
    made = crediting_of({"recipe": "grpo", "shape": {"type": "overlong", "buffer": 0.9}})
    scored = made.shape_reward(case.scored.rollouts, case.scored.score, BatchEvidence(case.evidence))
    expected = case.scored.score + overlong_penalty(case.scored.rollouts.mask.sum(-1), max_length=WIDTH, buffer=0.9)
    assert torch.equal(scored.reward.nan_to_num(), expected.nan_to_num())
    assert (scored.reward < case.scored.score).any()


def test_a_correction_weighs_the_trainer_against_the_sampler() -> None:
    case = made_up_case()
    sampler = case.scored.rollouts.behavior_logp + torch.linspace(-1, 0, WIDTH)
    rollouts = replace(case.scored.rollouts, behavior_logp=sampler)
    case = case._replace(scored=replace(case.scored, rollouts=rollouts))
    corrected = credit_case(crediting_of({"recipe": "grpo", "correction": {"kind": "tis", "cap": 1.5}}), case, MethodState()).credited
    assert corrected.correction is not None
    for row, token in rollouts.loss_mask.nonzero().tolist():
        ratio = math.exp(float(case.evidence.logp[row, token]) - float(sampler[row, token]))
        assert float(corrected.correction[row, token]) == pytest.approx(min(ratio, 1.5))
    assert credit_case(crediting_of("grpo"), case, MethodState()).credited.correction is None


def test_a_divergence_in_the_reward_is_counted_over_loss_tokens() -> None:
    case = made_up_case()
    rollouts, logp = case.scored.rollouts, case.evidence.logp
    evidence = BatchEvidence(case.evidence, logp - 0.5)
    made = crediting_of({"recipe": "grpo", "kl": {"beta": 0.2, "place": "reward", "estimator": "k1"}})
    scored = made.shape_reward(rollouts, case.scored.score, evidence)
    for row, score in enumerate(SCORE):
        tokens = int((rollouts.mask[row] & ~rollouts.behavior_logp[row].isnan()).sum())
        expected = score - 0.2 * 0.5 * tokens
        assert float(scored.reward[row]) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert torch.equal(scored.score.nan_to_num(), case.scored.score.nan_to_num())
    in_loss = crediting_of({"recipe": "grpo", "kl": {"beta": 0.2}}).shape_reward(rollouts, case.scored.score, evidence)
    assert torch.equal(in_loss.reward.nan_to_num(), case.scored.score.nan_to_num())


def test_evidence_that_was_sampled_reaches_its_stage() -> None:
    case = made_up_case()
    rollouts, score = case.scored.rollouts, case.scored.score
    made = crediting_of("ibpo-mask")
    repaired = torch.where(score < 0.5, 0.5, 0.0)
    edited = torch.zeros_like(rollouts.mask)
    edited[:, 1] = True
    ibpo, _ = made.credit(rollouts, score, BatchEvidence(case.evidence, extra=ExtraEvidence(repaired=repaired, edited=edited)), seed=0)
    assert (ibpo.scored.reward != score)[[1, 2, 4]].all()
    assert ibpo.coefficient is not None
    assert torch.equal(ibpo.coefficient != 0, edited & rollouts.loss_mask)
    greedy = torch.full_like(score, 0.25)
    evidence = BatchEvidence(case.evidence, extra=ExtraEvidence(greedy_score=greedy))
    remax, _ = crediting_of("remax").credit(rollouts, score, evidence, seed=0)
    assert remax.advantage[[0, 1]].tolist() == [0.75, -0.25]


@pytest.mark.parametrize(
    ("recipe", "asked", "made"),
    [
        ({"recipe": "grpo", "batching": {"type": "query-preserved"}}, 99, len(set(GROUP))),
        ({"recipe": "grpo", "batching": {"type": "query-preserved"}}, 3, 3),
        ("grpo", 99, len(GROUP)),
        ("grpo", 2, 2),
    ],
    ids=str,
)
def test_there_are_never_more_optimizer_steps_than_can_be_filled(recipe: Any, asked: int, made: int) -> None:
    credited = credit_case(crediting_of(recipe), made_up_case(), MethodState()).credited
    plan = planned(recipe, credited, optimizer_steps=asked)
    assert len(plan.steps) == made
    assert all(step.rows for step in plan.steps)


# --- numbers that every engine tells


def test_numbers_about_credit_and_plan() -> None:
    case, recipe = made_up_case(), {"recipe": "delta", "batching": {"type": "query-preserved"}}
    result = credit_case(crediting_of(recipe), case, MethodState())
    rollouts, coefficient = case.scored.rollouts, result.credited.coefficient
    told = credit_metrics(result.credited, planned(recipe, result.credited, optimizer_steps=5))
    assert told["ungraded"] == len(UNGRADED) == 3
    assert told["unscored_tokens"] == 2
    assert told["optimizer_steps"] == 5
    assert told["prompts_per_optimizer_step"] == 1
    assert told["steps_splitting_groups"] == 0
    assert told["tokens"] == int(rollouts.mask.sum()) - 2
    assert coefficient is not None
    inside = [float(coefficient[row, token]) for row, token in rollouts.loss_mask.nonzero().tolist()]
    mean = sum(inside) / len(inside)
    assert told["coefficient_mean"] == pytest.approx(mean) == pytest.approx(1.0)
    assert told["coefficient_std"] == pytest.approx((sum((value - mean) ** 2 for value in inside) / len(inside)) ** 0.5)
    shuffled = credit_metrics(result.credited, planned("grpo", result.credited, optimizer_steps=4))
    assert shuffled["steps_splitting_groups"] == 1.0
    assert shuffled["prompts_per_optimizer_step"] > 1


def test_credit_without_coefficients_and_a_plan_without_steps() -> None:
    credited = credit_case(crediting_of("ktae"), made_up_case(), MethodState()).credited
    told = credit_metrics(credited, StepPlan(kind="shuffled", seed=0, rows=len(GROUP), steps=()))
    assert told["optimizer_steps"] == told["prompts_per_optimizer_step"] == told["steps_splitting_groups"] == told["tokens"] == 0
    assert not {name for name in told if "coefficient" in name}


def test_every_number_a_method_remembers_is_told_under_its_stage() -> None:
    state = MethodState({"alpha": 2, "delta": 0.5, "ready": True, "name": "x"}, {"temperature": [1.0, 2.0], "level": 3.0})
    assert state_metrics(state) == {"advantage/alpha": 2.0, "advantage/delta": 0.5, "credit/level": 3.0}
    assert state_metrics(MethodState()) == {}

"""Gradients of the credit benchmark: the shortcut against autograd of the whole loss, the reference against enumeration, known winners."""

import math
from typing import Any

import pytest
import torch

from lab.first_token_decides import RIGHT, subject
from tokencredit.config import UniformCredit
from tokencredit.config.recipe import varied
from tokencredit.config.recipes import RECIPES
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import response_logits, row_cost
from tokencredit.kernels import entropy_of, token_logp
from tokencredit.lab.credit.batch import ReferenceSum, draw_batch, gradients_of
from tokencredit.lab.credit.compare_gradients import compare, draw_reference, halves_of
from tokencredit.lab.credit.measure import Clock, Subject, measure_credit
from tokencredit.lab.credit.quality import axes_of
from tokencredit.lab.credit.recipes import (
    BASELINE,
    CONTROL,
    ORACLE,
    TWIN,
    Assigned,
    CreditAssigner,
    CreditOrder,
    Method,
    find_methods,
    uniform_twins,
)
from tokencredit.pipeline.credit import BatchEvidence
from tokencredit.pipeline.microbatch import gather_rows, micro_batch_loss, step_seed, step_statistic
from tokencredit.rollout.scoring import credit_pipeline, model_facts
from tokencredit.seeds import derive_seed

SEED = 11


def nobody(what: str, done: int, total: int) -> None:
    """Is told."""


def flat_gradient(world: Subject, loss: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(world.policy.model.parameters()), materialize_grads=True)
    return torch.cat([part.flatten() for part in found])


def whole_logits(world: Subject, prompts: Any, tokens: torch.Tensor) -> torch.Tensor:
    return response_logits(world.policy.model, list(prompts), tokens).logits


@pytest.mark.parametrize(
    "name", ["grpo", "dr-grpo", "dapo", "delta", "ntf", "ktae", "gspo", "gmpo", "sapo", "clip-cov", "fipo", "dfpo", "cancellation"]
)
def test_a_backward_pass_of_kappa_is_the_gradient_of_the_recipe_s_own_loss(name: str) -> None:
    world = subject(group_size=6)
    batch = draw_batch(*world, prompts=5, purpose="batch", keep_hidden=True)
    method = Method(name, RECIPES[name].recipe, None)
    assigned = CreditAssigner(world.policy, world.task, batch, world.config, seed=SEED)(method)
    assert isinstance(assigned, Assigned)
    found = gradients_of(world.policy, batch.rollouts, {"other": torch.ones_like(assigned.ascent), name: assigned.ascent}, world.config)[
        name
    ]

    chosen = method.on(world.config)
    pipeline = credit_pipeline(chosen)
    evidence = BatchEvidence(batch.evidence, model=model_facts(world.policy))
    credited, _ = pipeline.credit(batch.rollouts, batch.score, evidence, seed=derive_seed(SEED, "credit"))
    cost = row_cost(batch.rollouts)
    [step] = pipeline.plan(credited, optimizer_steps=1, max_tokens=10**6, cost=cost, seed=derive_seed(SEED, "plan")).steps
    rows = torch.tensor(step.rows)
    width = batch.rollouts.tokens.shape[1]
    part = gather_rows(credited, step, rows, pipeline.objective, width=width, seed=step_seed(derive_seed(SEED, "objective"), 0))
    statistic = step_statistic(pipeline.objective.objective, [part.inputs])
    tokens = batch.rollouts.tokens[rows]
    logp = token_logp(whole_logits(world, [batch.rollouts.prompts[row] for row in step.rows], tokens), tokens)
    loss = micro_batch_loss(pipeline.objective.objective, part, logp, statistic)
    expected = -flat_gradient(world, loss)
    assert float(expected.norm()) > 0
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_the_cut_into_passes_changes_no_gradient() -> None:
    world = subject(group_size=4)
    batch = draw_batch(*world, prompts=4, purpose="batch")
    ascent = torch.randn(batch.rollouts.mask.shape, dtype=torch.float64) * batch.rollouts.mask
    small = world.config.model_copy(update={"optimizer": world.config.optimizer.model_copy(update={"max_tokens": 16})})
    whole, cut = (gradients_of(world.policy, batch.rollouts, {"a": ascent, "b": -ascent}, config) for config in (world.config, small))
    torch.testing.assert_close(whole["a"], cut["a"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cut["a"], -cut["b"], rtol=1e-5, atol=1e-6)


def exact_gradients(world: Subject, prompts: set[tuple[int, ...]]) -> torch.Tensor:
    """Of the chance that the first token is a right one, the mean over prompts."""
    right = [world.policy.encode(one)[0] for one in RIGHT]
    logits = whole_logits(world, sorted(prompts), torch.zeros(len(prompts), 1, dtype=torch.long))[:, 0]
    return flat_gradient(world, logits.softmax(-1)[:, right].sum(-1).mean())


def test_the_reference_is_the_gradient_of_the_expected_score() -> None:
    world = subject()
    total, prompts = ReferenceSum(world.policy, world.config), []
    for number in range(4):
        batch = draw_batch(*world, prompts=70, purpose="reference", number=number)
        total.add(batch)
        prompts += batch.rollouts.prompts
    reference = total.finish()
    # Every lot asks each of the 70 prompts once.
    assert len(set(prompts)) == 70
    exact = exact_gradients(world, set(prompts))
    assert float(torch.nn.functional.cosine_similarity(reference.gradient.double(), exact, dim=0)) > 0.97
    assert float(reference.gradient.double() @ exact / (exact @ exact)) == pytest.approx(1, abs=0.1)
    # Two halves of unbiased noise agree as much as the reference's own reliability says.
    axes = axes_of(halves_of(reference))
    assert 0.8 < axes.agreement < 0.999
    assert axes.reliability == pytest.approx(
        float(torch.nn.functional.cosine_similarity(reference.gradient.double(), exact, dim=0)), abs=0.03
    )


def test_the_entropy_gradient_is_that_of_the_visited_states() -> None:
    world = subject()
    batch = draw_batch(*world, prompts=3, purpose="reference")
    total = ReferenceSum(world.policy, world.config)
    total.add(batch)
    found = total.finish().entropy_halves[0]
    mask, tokens = batch.rollouts.mask, batch.rollouts.tokens
    entropy = entropy_of(whole_logits(world, batch.rollouts.prompts, tokens).log_softmax(-1))
    expected = flat_gradient(world, (entropy * mask).sum() / mask.sum())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    world = subject()
    order = CreditOrder(prompts=40, continuations=24, reference=3000, batches=16, batch_prompts=8, resamples=200)
    field = find_methods("gspo,delta,ntf,remax,vineppo,negative-only")
    measured = measure_credit(world, order, field, nobody, Clock())
    gradient = compare(world, order, field, measured, nobody, Clock())
    return measured.record | {"gradient": gradient, "left_out": measured.left_out + gradient["left_out"]}


def row(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in rows if one["method"] == name)


def test_true_credit_beats_the_baseline_and_noise_does_not(compared: dict[str, Any]) -> None:
    groups, batches = (compared["gradient"][which]["rows"] for which in ("groups", "batches"))
    oracle, control = row(groups, ORACLE), row(groups, CONTROL)
    assert oracle["versus_grpo"]["mean"] > 0.05
    assert oracle["versus_grpo"]["t"] > compared["gradient"]["groups"]["surviving_t"]
    assert oracle["rollouts_grpo_would_need"]["low"] == math.inf or oracle["rollouts_grpo_would_need"]["low"] > 8
    for one in (control, row(batches, CONTROL)):
        assert abs(one["versus_grpo"]["t"]) < 3
        assert abs(one["versus_grpo"]["mean"]) < 0.02
    worse = row(batches, "negative-only")
    assert worse["versus_grpo"]["t"] < -3
    base = row(batches, BASELINE)
    assert base["versus_grpo"]["mean"] == 0
    # The mean of sixteen batches has a quarter of the noise of one.
    assert base["mean_cosine"] > max(base["cosines"])
    assert base["mean_cosine_corrected"] == pytest.approx(1, abs=0.1)
    assert row(batches, BASELINE)["rollouts_grpo_would_need"]["value"] == pytest.approx(64)


def test_truth_says_which_tokens_decide_and_who_credits_them(compared: dict[str, Any]) -> None:
    classes = compared["truth"]["classes"]
    # A response may also begin with the end token, which decides it as well.
    assert classes["decides"]["share_of_square"] > 0.98
    assert classes["filler"]["share_of_square"] == pytest.approx(0, abs=1e-9)
    assert classes["decides"]["share_of_tokens"] < 0.5
    rows = compared["agreement"]["rows"]
    oracle, grpo = row(rows, ORACLE), row(rows, BASELINE)
    assert oracle["pearson"]["value"] == pytest.approx(1)
    assert oracle["on_format"]["value"] == pytest.approx(0, abs=1e-9)
    assert grpo["on_format"]["value"] > 0.4
    assert (grpo["auroc"]["value"], grpo["pearson"]["low"] < grpo["pearson"]["value"] < grpo["pearson"]["high"]) == (0.5, True)
    assert row(rows, "gspo")["same_credit_as"] == BASELINE
    assert row(rows, "delta")["same_credit_as"] is None
    assert {name: sides["positive"] for name, sides in grpo["by_class"].items()} == pytest.approx({"decides": 1, "filler": 1, "end": 1})


def test_what_is_too_dear_or_does_not_fit_is_told(compared: dict[str, Any]) -> None:
    assert [(one.recipe, one.part) for one in compared["left_out"]] == [("vineppo", "all")]
    assert "does not mark where steps begin" in compared["left_out"][0].why
    assert 0 < row(compared["agreement"]["rows"], "remax")["extra_rollouts_per_rollout"] <= 1 / 8


def test_twins_have_the_same_stages_but_uniform_credit() -> None:
    field = find_methods("delta,ntf")
    named = {one.name: one for one in field.methods}
    assert list(named) == [BASELINE, CONTROL, "delta", "ntf"]
    assert named[CONTROL].twin == BASELINE
    made = {one.name: one.recipe for one in uniform_twins(field.methods)}
    assert made[TWIN.format("delta")].credit == UniformCredit()
    assert made[TWIN.format("delta")].objective == RECIPES["delta"].recipe.objective
    everyone = find_methods("delta,dapo,ntf,c-rf").methods
    assert {one.name: one.twin for one in everyone if one.twin} == {CONTROL: "grpo", "delta": "dapo", "ntf": "c-rf"}


def test_a_recipe_brings_settings_of_its_own() -> None:
    asked = "dapo,right-once:advantage.type=grpo,delta:credit.scope=group+objective.aggregation=sequence-mean"
    named = {one.name: one for one in find_methods(asked).methods}
    assert list(named)[2:] == asked.split(",")
    once, delta = (named[name].recipe for name in asked.split(",")[1:])
    assert once.advantage.type == "grpo"
    assert once.credit == RECIPES["right-once"].recipe.credit
    assert delta.credit == RECIPES["delta"].recipe.credit.model_copy(update={"scope": "group"})
    assert delta.objective == RECIPES["delta"].recipe.objective.model_copy(update={"aggregation": "sequence-mean"})


def test_mistaken_recipes_are_named() -> None:
    with pytest.raises(ConfigError, match="recipes: 'delt' is not known; did you mean 'delta'"):
        find_methods("grpo,delt")
    with pytest.raises(ConfigError, match="recipes is empty"):
        find_methods(" , ")
    assert [one.recipe for one in find_methods("dapo-dynamic").left_out] == ["dapo-dynamic"]
    assert varied(RECIPES["dapo"].recipe, filter_groups=True).filter_groups


def test_a_task_that_teaches_nothing_is_told() -> None:
    world = subject()

    class Hopeless(type(world.task)):
        def grade(self, problem: object, response: str) -> float:
            return 0.0

    lost = world._replace(task=Hopeless())
    order = CreditOrder(prompts=2, continuations=4, reference=64, batches=2, batch_prompts=2, resamples=10)
    field = find_methods("grpo")
    measured = measure_credit(lost, order, field, nobody, Clock())
    with pytest.raises(ConfigError, match="no group of the reference rollouts has scores that differ"):
        compare(lost, order, field, measured, nobody, Clock())


def test_without_a_mixed_group_in_the_truth_batch_the_oracle_is_left_out() -> None:
    world = subject()
    order = CreditOrder(prompts=2, continuations=4, reference=64, batches=2, batch_prompts=2, resamples=10)
    field = find_methods("grpo")
    measured = measure_credit(world, order, field, nobody, Clock())
    silent = {name: one._replace(ascent=torch.zeros_like(one.ascent)) for name, one in measured.assigned.items()}
    found = compare(world, order, field, measured._replace(assigned=silent), nobody, Clock())
    assert found["groups"] is None
    assert [(one.recipe, one.part) for one in found["left_out"]] == [(ORACLE, "groups")]
    assert found["batches"]["batches"] == 2


def test_the_reference_takes_an_even_number_of_equal_lots() -> None:
    world = subject()
    reference, facts = draw_reference(world, CreditOrder(reference=2000), nobody)
    assert facts.rollouts == 2000 // 8 // 2 * 2 * 8
    assert 0 < facts.right / facts.graded < 1
    assert float(reference.halves[0].norm()) > 0

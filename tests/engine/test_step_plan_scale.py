"""Factors on a step's credit: scales that a plan gives its rows, and weights that correct for the sampler, in the real gradient."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from engine.runs import small_config
from tiny import CONSTANT, gradient_of, made_up_credit, made_up_rollouts, plan_for, tiny_policy
from tokencredit.forward.modes import ForwardOptions
from tokencredit.forward.padded import score_rows
from tokencredit.objective import OBJECTIVES, Objective, with_correction, with_kl
from tokencredit.optim.update import StepLoss, accumulate_gradient
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.credit import CreditPipeline
from tokencredit.policy.policy import Policy
from tokencredit.rollout.scoring import credit_pipeline
from tokencredit.types import Aggregation, Credited, PlannedStep

TEMPERATURE = 0.7
CLIP = OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.28, dual_clip=3.0)
OBJECTIVES_UNDER_TEST: dict[str, Objective] = {
    "clip": CLIP,
    "clip+kl": with_kl(CLIP, beta=0.3, estimator="k3"),
    "gspo": OBJECTIVES["gspo"](clip_low=0.1, clip_high=0.1),
    "dfpo": OBJECTIVES["dfpo"](),
    "dfpo orthogonal": OBJECTIVES["dfpo"](transform="orthogonal"),
}
HOMOGENEOUS = ("clip", "gspo", "dfpo")
"""A row's loss is multiplied as its credit is."""


def near_policy(policy: Policy, dtype: torch.dtype = torch.float64) -> Credited:
    """Made-up credit on old log-probs not far from the policy's own, so that some tokens are clipped and most are not."""
    rollouts = made_up_rollouts(groups=6, group_size=4)
    logp = score_rows(policy.model, rollouts, temperature=TEMPERATURE, max_tokens=1000).logp
    noise = torch.randn(logp.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    old_logp = logp + 0.2 * noise.to(dtype)
    return replace(made_up_credit(rollouts, dtype=dtype), old_logp=old_logp, reference_logp=old_logp + 0.3 * noise.flip(0).to(dtype))


def scale_of(row: int) -> float:
    """Powers of two, and 0 for one row in four: the model's norms work in float32 even here, and these do not disturb its rounding."""
    return 0.0 if row % 4 == 3 else 2.0 ** (row * 7 % 5 - 2)


def scaled_step(step: PlannedStep) -> PlannedStep:
    return replace(step, credit_scale=tuple(scale_of(row) for row in step.rows))


def with_scaled_credit(credited: Credited) -> Credited:
    factor = torch.tensor([scale_of(row) for row in range(len(credited.advantage))], dtype=credited.credit.dtype)
    return replace(credited, credit=credited.credit * factor[:, None], advantage=credited.advantage * factor)


def gradient_and_more(
    policy: Policy, credited: Credited, step: PlannedStep, objective: Objective, aggregation: Aggregation = "token-mean"
) -> tuple[torch.Tensor, StepLoss]:
    policy.model.zero_grad()
    more = accumulate_gradient(
        policy, credited, step, AggregatedObjective(objective, aggregation, CONSTANT), ForwardOptions(temperature=TEMPERATURE)
    )
    return gradient_of(policy), more


def relative_gap(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).norm() / two.norm())


# --- scales of a plan


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "constant"])
@pytest.mark.parametrize("name", OBJECTIVES_UNDER_TEST)
def test_scaling_rows_is_scaling_their_credit(name: str, aggregation: Aggregation) -> None:
    policy, objective = tiny_policy(), OBJECTIVES_UNDER_TEST[name]
    credited = near_policy(policy)
    for step in plan_for(credited, 40, aggregation).steps:
        assert len(step.micro_batches) > 1
        scaled, told = gradient_and_more(policy, credited, scaled_step(step), objective, aggregation)
        expected, more = gradient_and_more(policy, with_scaled_credit(credited), step, objective, aggregation)
        plain, _ = gradient_and_more(policy, credited, step, objective, aggregation)
        assert relative_gap(scaled, expected) < 1e-12
        assert relative_gap(plain, expected) > 0.05
        assert told.loss == pytest.approx(more.loss, rel=1e-12)
        assert told.silenced_share == more.silenced_share


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_a_scaled_step_is_the_scaled_sum_of_its_rows(name: str) -> None:
    """Every row by itself, with the step's denominator, multiplied after the fact: nothing is multiplied before."""
    policy, objective = tiny_policy(), OBJECTIVES_UNDER_TEST[name]
    credited = near_policy(policy)
    # Whole groups, because dfpo weighs a row by its siblings.
    step = plan_for(credited, 1000, kind="query-preserved").steps[0]
    total = torch.zeros_like(gradient_and_more(policy, credited, step, objective)[0])
    for row in step.rows:
        alone = credited.credit * (torch.arange(len(credited.advantage)) == row)[:, None]
        total += scale_of(row) * gradient_and_more(policy, replace(credited, credit=alone, coefficient=None), step, objective)[0]
    assert relative_gap(gradient_and_more(policy, credited, scaled_step(step), objective)[0], total) < 1e-12


@pytest.mark.parametrize("name", OBJECTIVES_UNDER_TEST)
def test_the_cut_into_micro_batches_does_not_change_who_is_scaled(name: str) -> None:
    policy = tiny_policy()
    credited = near_policy(policy)
    gradients, cuts = [], set()
    for max_tokens in (13, 26, 40, 1000):
        step = scaled_step(plan_for(credited, max_tokens).steps[0])
        cuts.add(step.micro_batches)
        gradients.append(gradient_and_more(policy, credited, step, OBJECTIVES_UNDER_TEST[name])[0])
    assert len(cuts) == 4
    for other in gradients[1:]:
        assert relative_gap(other, gradients[0]) < 1e-12


@pytest.mark.mutants
def test_scales_in_another_order_than_the_rows_would_be_noticed() -> None:
    policy = tiny_policy()
    credited = near_policy(policy)
    step = scaled_step(plan_for(credited).steps[0])
    assert step.credit_scale is not None
    turned = replace(step, credit_scale=step.credit_scale[1:] + step.credit_scale[:1])
    right, wrong = (gradient_and_more(policy, credited, each, CLIP)[0] for each in (step, turned))
    assert relative_gap(wrong, right) > 0.05


def test_scales_of_one_are_no_scales_to_the_bit() -> None:
    policy = tiny_policy(torch.float32)
    credited = near_policy(policy, torch.float32)
    step = plan_for(credited).steps[0]
    ones = replace(step, credit_scale=(1.0,) * len(step.rows))
    assert torch.equal(gradient_and_more(policy, credited, ones, CLIP)[0], gradient_and_more(policy, credited, step, CLIP)[0])


def test_a_reweighted_plan_gives_both_sides_the_same_mass_whatever_the_cut() -> None:
    credited = near_policy(tiny_policy())
    lengths = credited.rollouts.loss_mask.sum(-1).tolist()
    seen: list[dict[int, float]] = []
    for max_tokens in (13, 40, 1000):
        plan = plan_for(credited, max_tokens, kind="reward-balanced", method="reweight", advantage=credited.advantage)
        for step in plan.steps:
            assert step.credit_scale is not None
            mass = {1: 0.0, -1: 0.0}
            for row, scale in zip(step.rows, step.credit_scale, strict=True):
                advantage = float(credited.advantage[row])
                if advantage:
                    mass[1 if advantage > 0 else -1] += scale * abs(advantage) * lengths[row]
            assert mass[1] == pytest.approx(mass[-1], rel=1e-12)
            assert mass[1] > 0
        seen.append({row: scale for step in plan.steps for row, scale in zip(step.rows, step.credit_scale or (), strict=True)})
    assert seen[0] == seen[1] == seen[2]


# --- weights that correct for the sampler


def corrected(credited: Credited, **choice: object) -> tuple[CreditPipeline, Credited]:
    pipeline = credit_pipeline(small_config(recipe="dapo", correction=choice))
    assert pipeline.correction is not None
    rollouts = credited.rollouts
    return pipeline, replace(credited, correction=pipeline.correction(credited.old_logp, rollouts.behavior_logp, rollouts.loss_mask))


def naive_weights(credited: Credited, kind: str, level: str, cap: float, floor: float) -> list[list[float]]:
    rollouts = credited.rollouts
    rows, width = rollouts.mask.shape
    weights = [[0.0] * width for _ in range(rows)]
    for row in range(rows):
        tokens = [t for t in range(width) if rollouts.loss_mask[row, t]]
        gaps = {t: float(credited.old_logp[row, t] - rollouts.behavior_logp[row, t]) for t in tokens}
        for t in tokens:
            ratio = math.exp(max(-20.0, min(20.0, sum(gaps.values()) if level == "sequence" else gaps[t])))
            within = floor <= ratio <= cap
            weights[row][t] = ratio if within else 0.0 if kind == "mis" else min(max(ratio, floor), cap)
    return weights


@pytest.mark.parametrize(("kind", "level"), product(["tis", "mis"], ["token", "sequence"]))
def test_a_correction_multiplies_the_gradient_of_every_token_by_its_weight(kind: str, level: str) -> None:
    """The clipped loss is multiplied as its credit is, so weights on losses must be what the same weights on credit are."""
    policy = tiny_policy()
    credited = near_policy(policy)
    noise = torch.randn(credited.old_logp.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rollouts = credited.rollouts
    shifted = (credited.old_logp + 0.3 * noise).clamp(max=0).where(~rollouts.behavior_logp.isnan(), torch.nan)
    credited = replace(credited, scored=replace(credited.scored, rollouts=replace(rollouts, behavior_logp=shifted)))
    weights = naive_weights(credited, kind, level, 1.3, 0.6)
    flat = [weight for row in weights for weight in row]
    assert any(weight not in (0.0, 0.6, 1.3) for weight in flat)
    assert any(weight in (0.6, 1.3) for weight in flat) or kind == "mis"
    pipeline, with_weights = corrected(credited, kind=kind, level=level, cap=1.3, floor=0.6)
    torch.testing.assert_close(with_weights.correction, torch.tensor(weights, dtype=torch.float64), rtol=1e-12, atol=0)
    weighed = replace(credited, credit=credited.credit * torch.tensor(weights, dtype=torch.float64), coefficient=None)
    plain = credit_pipeline(small_config(recipe="dapo"))
    step = plan_for(credited).steps[0]

    def gradient(of: CreditPipeline, given: Credited) -> torch.Tensor:
        policy.model.zero_grad()
        accumulate_gradient(policy, given, step, of.objective, ForwardOptions(temperature=TEMPERATURE))
        return gradient_of(policy)

    expected = gradient(plain, weighed)
    assert relative_gap(gradient(pipeline, with_weights), expected) < 1e-12
    assert relative_gap(gradient(plain, credited), expected) > 0.05


@pytest.mark.parametrize("choice", [{"kind": "tis"}, {"kind": "mis", "level": "sequence", "cap": 1.0, "floor": 1.0}], ids=str)
def test_where_sampler_and_trainer_agree_a_correction_changes_no_bit(choice: dict[str, object]) -> None:
    policy = tiny_policy(torch.float32)
    credited = near_policy(policy, torch.float32)
    rollouts = replace(credited.rollouts, behavior_logp=credited.old_logp.clamp(max=0))
    credited = replace(credited, old_logp=rollouts.behavior_logp, scored=replace(credited.scored, rollouts=rollouts))
    pipeline, with_weights = corrected(credited, **choice)
    assert with_weights.correction is not None
    assert torch.equal(with_weights.correction, rollouts.mask.float())
    step = plan_for(credited).steps[0]
    plain = credit_pipeline(small_config(recipe="dapo")).objective.objective
    without, one = gradient_and_more(policy, credited, step, plain)
    through, two = gradient_and_more(policy, with_weights, step, pipeline.objective.objective)
    assert torch.equal(without, through)
    assert one == two


def test_a_correction_does_not_reach_the_kl_term() -> None:
    """With every weight 0 the clipped part is gone and the KL part is whole."""
    policy = tiny_policy()
    credited = near_policy(policy)
    step = plan_for(credited).steps[0]
    nothing = replace(credited, correction=torch.zeros_like(credited.credit))
    without_credit = replace(credited, credit=torch.zeros_like(credited.credit), coefficient=None)
    silent, _ = gradient_and_more(policy, nothing, step, with_kl(with_correction(CLIP), beta=0.3, estimator="k3"))
    kl_alone, _ = gradient_and_more(policy, without_credit, step, with_kl(CLIP, beta=0.3, estimator="k3"))
    assert kl_alone.norm() > 1e-4
    assert relative_gap(silent, kl_alone) < 1e-12

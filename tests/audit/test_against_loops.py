"""The audit's residual against plain loops over numeric derivatives."""

from dataclasses import replace

import pytest
import torch

from audit.by_hand import numeric_kappa, residual_by_loops
from tokencredit.audit import CONDITIONS
from tokencredit.audit.residual import residual, step_kappa
from tokencredit.audit.scene import GROUP_SIZE, OUTCOMES, SHARED, plain_scene
from tokencredit.audit.subject import Subject, assign, plan_for
from tokencredit.config.recipes import RECIPES
from tokencredit.objective import TokenInputs, token_weight

ON_LOOPS = ["grpo", "dapo", "gspo", "gmpo", "cispo", "sapo", "dfpo", "dfpo-orthogonal", "grpo-fix", "opo", "delta", "ntf", "fipo"]


def small(condition: str):
    """The first three groups of a condition: numeric derivatives are dear."""
    scene = CONDITIONS[condition]()
    rows = slice(0, 3 * GROUP_SIZE)
    tensors = {name: getattr(scene, name)[rows] for name in scene.__slots__ if isinstance(getattr(scene, name), torch.Tensor)}
    return replace(scene, **tensors, optimizer_steps=min(scene.optimizer_steps, 3))


def loss_of_step(subject: Subject, scene, assigned, step, built):
    rows = torch.tensor(step.rows)

    def loss(logp: torch.Tensor) -> float:
        inputs = TokenInputs(
            logp=logp, old_logp=scene.old_logp[rows], credit=assigned.credit[rows], mask=scene.mask[rows], group=scene.group[rows],
            advantage=assigned.advantage[rows], row=rows,
        )  # fmt: skip
        losses = built.objective.token_loss(inputs, frozen)
        weights = token_weight(inputs.mask, inputs.mask.sum(-1).double(), aggregation=built.aggregation)
        return float((losses * weights)[inputs.mask].sum() / step.denominator)

    # What stands under a stop-gradient must stand still while a log-prob is nudged.
    frozen = None
    if built.objective.statistic is not None:
        accumulator = built.objective.statistic()
        accumulator.add(
            TokenInputs(
                logp=scene.logp[rows],
                old_logp=scene.old_logp[rows],
                credit=assigned.credit[rows],
                mask=scene.mask[rows],
                group=scene.group[rows],
                advantage=assigned.advantage[rows],
                row=rows,
            )
        )
        frozen = accumulator.finish()
    return loss


# Objectives whose stop-gradient lies inside the token loss cannot be differentiated numerically; their kappa is checked elsewhere.
NUMERIC = ["grpo", "dapo", "grpo-fix", "sapo", "opo", "delta", "ntf", "dfpo", "dfpo-orthogonal"]


@pytest.mark.parametrize("condition", ["off-policy", "uneven lengths", "split groups", "unequal coefficients"])
@pytest.mark.parametrize("recipe", NUMERIC)
def test_residuals_are_those_of_numeric_derivatives(recipe: str, condition: str) -> None:
    subject = Subject(recipe, RECIPES[recipe].recipe)
    scene = small(condition)
    built = subject.built()
    assigned = assign(subject.recipe, scene)
    plan = plan_for(subject.recipe, scene, assigned.advantage, built)
    kappas = [numeric_kappa(loss_of_step(subject, scene, assigned, step, built), scene.logp[list(step.rows)]) for step in plan.steps]
    groups = [scene.group[list(step.rows)].tolist() for step in plan.steps]
    expected = residual_by_loops(kappas, groups, SHARED)
    found = residual(scene, assigned, plan, built)
    assert expected is not None
    assert found == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("recipe", ON_LOOPS)
def test_residuals_add_up_token_by_token(recipe: str, condition: str) -> None:
    subject = Subject(recipe, RECIPES[recipe].recipe)
    scene = CONDITIONS[condition]()
    built = subject.built()
    assigned = assign(subject.recipe, scene)
    plan = plan_for(subject.recipe, scene, assigned.advantage, built)
    kappas = [step_kappa(scene, assigned, step, built).tolist() for step in plan.steps]
    groups = [scene.group[list(step.rows)].tolist() for step in plan.steps]
    assert residual(scene, assigned, plan, built) == pytest.approx(residual_by_loops(kappas, groups, SHARED), abs=1e-13)


def test_siblings_share_what_a_scene_says_they_share() -> None:
    for make in CONDITIONS.values():
        scene = make(seed=3)
        for name in scene.group.unique():
            rows = scene.group == name
            for column in ("tokens", "logp", "old_logp", "entropy", "hidden"):
                shared = getattr(scene, column)[rows][:, :SHARED]
                assert (shared == shared[:1]).all(), column
            assert scene.shared[rows][:, :SHARED].all()
            assert not scene.shared[rows][:, SHARED:].any()
        assert (scene.mask | ~scene.shared).all()


def test_scenes_hold_every_mixed_share_and_follow_their_seed() -> None:
    assert {sum(outcome) for outcome in OUTCOMES} == {1, 2, 3}
    assert plain_scene(seed=1).old_logp.equal(plain_scene(seed=1).old_logp)
    assert not plain_scene(seed=1).old_logp.equal(plain_scene(seed=2).old_logp)

"""Wrong audits: each would let a known answer slip, and so each must be told apart."""

from collections.abc import Callable

import pytest
import torch

from tokencredit.audit import CONDITIONS
from tokencredit.audit.residual import ZERO, find_causes, residual, step_kappa
from tokencredit.audit.subject import Subject, assign, plan_for
from tokencredit.config.recipes import RECIPES

Residual = Callable[..., float | None]


def summed_over_steps(scene, assigned, plan, built):
    """Adds kappa of different optimizer steps, where siblings never met."""
    whole = torch.zeros_like(scene.logp)
    for step in plan.steps:
        whole[list(step.rows)] = step_kappa(scene, assigned, step, built).where(scene.shared[list(step.rows)], 0.0)
    net = torch.stack([whole[scene.group == name].sum(0) for name in scene.group.unique()])
    return float(net.abs().sum() / whole.abs().sum())


def absolute_after_summing_groups(scene, assigned, plan, built):
    """Lets one prompt's leftover cancel another's."""
    left, total = 0.0, 0.0
    for step in plan.steps:
        kappa = step_kappa(scene, assigned, step, built).where(scene.shared[list(step.rows)], 0.0)
        left += float(kappa.sum(0).abs().sum())
        total += float(kappa.abs().sum())
    return left / total if total else None


def every_token(scene, assigned, plan, built):
    """Counts tokens that siblings do not share, which have nothing to cancel with."""
    left, total = 0.0, 0.0
    for step in plan.steps:
        kappa = step_kappa(scene, assigned, step, built)
        groups = scene.group[list(step.rows)]
        left += sum(float(kappa[groups == name].sum(0).abs().sum()) for name in groups.unique())
        total += float(kappa.abs().sum())
    return left / total if total else None


def silent_is_zero(scene, assigned, plan, built):
    return residual(scene, assigned, plan, built) or 0.0


def credit_for_kappa(scene, assigned, plan, built):
    """Looks at credit instead of what the objective makes of it."""
    left, total = 0.0, 0.0
    for step in plan.steps:
        credit = assigned.credit[list(step.rows)].where(scene.shared[list(step.rows)], 0.0)
        groups = scene.group[list(step.rows)]
        left += sum(float(credit[groups == name].sum(0).abs().sum()) for name in groups.unique())
        total += float(credit.abs().sum())
    return left / total if total else None


def answers(measure: Residual) -> list[str]:
    """One word per known case."""
    cases = [("dapo", "split groups"), ("opo", "uneven lengths"), ("asym", "on-policy"), ("dapo", "uneven lengths"), ("grpo", "clipping"),
             ("grpo", "uneven lengths"), ("vineppo", "on-policy"), ("gspo", "off-policy"), ("dfpo", "off-policy")]  # fmt: skip
    said = []
    for recipe, condition in cases:
        subject, scene = Subject(recipe, RECIPES[recipe].recipe), CONDITIONS[condition]()
        built, assigned = subject.built(), assign(subject.recipe, scene)
        found = measure(scene, assigned, plan_for(subject.recipe, scene, assigned.advantage, built), built)
        said.append("silent" if found is None else "cancels" if found <= ZERO else "breaks")
    return said


RIGHT = ["breaks", "breaks", "breaks", "cancels", "breaks", "breaks", "silent", "breaks", "cancels"]


def test_the_audit_gives_the_right_answers() -> None:
    assert answers(residual) == RIGHT


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [summed_over_steps, absolute_after_summing_groups, every_token, silent_is_zero, credit_for_kappa])
def test_wrong_audits_do_not(mutant: Residual) -> None:
    if mutant is absolute_after_summing_groups:
        # Groups of this scene could cancel each other by chance only; two mirrored ones do exactly.
        assert mirrored(mutant) <= ZERO < mirrored(residual)
    else:
        assert answers(mutant) != RIGHT


def mirrored(measure: Residual) -> float:
    """Two groups whose leftovers are opposite: +1 -0.5 and -1 +0.5 on every shared token."""
    from dataclasses import replace

    scene = CONDITIONS["on-policy"]()
    subject = Subject("dapo", RECIPES["dapo"].recipe)
    built, assigned = subject.built(), assign(subject.recipe, scene)
    advantage = torch.zeros_like(assigned.advantage)
    advantage[:2], advantage[4:6] = torch.tensor([1.0, -0.5]).double(), torch.tensor([-1.0, 0.5]).double()
    assigned = assigned._replace(advantage=advantage, credit=advantage[:, None] * scene.mask)
    found = measure(replace(scene), assigned, plan_for(subject.recipe, scene, advantage, built), built)
    assert found is not None
    return found


def test_a_term_that_is_enough_alone_is_named_and_others_are_not() -> None:
    def breaks_with(*present: str) -> Callable[[frozenset[str]], float]:
        return lambda off: 0.5 if any(term not in off for term in present) else 0.0

    assert find_causes(breaks_with("clip")) == ("clip",)
    assert find_causes(breaks_with("clip", "divisor")) == ("divisor", "clip")


def test_terms_that_break_only_together_are_both_named() -> None:
    assert find_causes(lambda off: 0.5 if not off & {"ratio", "divisor"} else None) == ("divisor", "ratio")


def test_a_term_nobody_knows_is_called_other() -> None:
    assert find_causes(lambda off: 0.5) == ("other",)
    assert find_causes(lambda off: 0.5 if "clip" in off else 0.7) == ("clip", "other")
    assert find_causes(lambda off: 0.5 if len(off) < 2 else 0.0) == ()

"""How much of the update on shared tokens fails to cancel: |sum kappa| / sum |kappa|, step by step and token by token.

Why shared tokens do not cancel: every term that could be to blame can be switched off.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.audit.scene import Scene
from tokencredit.audit.subject import Assigned, Subject, assign, plan_for
from tokencredit.config import KlCovObjective, QueryPreservedBatching, Recipe, RewardBalancedBatching, ShuffledBatching
from tokencredit.config.recipe import varied
from tokencredit.masked import group_statistics
from tokencredit.objective import TokenInputs, token_weight
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.types import PlannedStep, StepPlan

ZERO = 1e-12
"""Residuals up to this are rounding."""


def _step_inputs(scene: Scene, assigned: Assigned, step: PlannedStep) -> TokenInputs:
    rows = torch.tensor(step.rows)
    scale = torch.ones(len(rows), dtype=torch.float64) if step.credit_scale is None else torch.tensor(step.credit_scale).double()
    return TokenInputs(
        logp=scene.logp[rows],
        old_logp=scene.old_logp[rows],
        credit=assigned.credit[rows] * scale[:, None],
        mask=scene.mask[rows],
        group=scene.group[rows],
        # A reference the policy has left, for recipes with a KL term.
        reference_logp=scene.old_logp[rows] - 0.05,
        advantage=assigned.advantage[rows] * scale,
        row=rows,
        correction=assigned.correction[rows],
    )


def _kappa(inputs: TokenInputs, built: AggregatedObjective, denominator: float) -> Tensor:
    statistic = None
    if built.objective.statistic is not None:
        accumulator = built.objective.statistic()
        accumulator.add(inputs)
        statistic = accumulator.finish()
    weight = token_weight(inputs.mask, inputs.mask.sum(-1).double(), aggregation=built.aggregation)
    kappa = token_kappa(built.objective, inputs, statistic, weight, denominator=denominator).kappa
    if not bool(kappa.isfinite().all()):
        raise ValueError(f"the objective's gradient is not finite at {int((~kappa.isfinite()).sum())} of {kappa.numel()} tokens")
    return kappa


class Switches(NamedTuple):
    """Terms of the objective that are switched off."""

    sign: bool = False
    """Evaluate positive credit only and restore the signs: the gradient if the objective treated both signs the same."""
    penalty: bool = False
    """Subtract the gradient that it sends to a token without credit."""


AS_IT_IS = Switches()


def step_kappa(scene: Scene, assigned: Assigned, step: PlannedStep, built: AggregatedObjective, overlook: Switches = AS_IT_IS) -> Tensor:
    """dJ/d logp of every token of one optimizer step, [row of the step, token]."""
    inputs = _step_inputs(scene, assigned, step)
    if overlook == AS_IT_IS:
        return _kappa(inputs, built, step.denominator)
    without_credit = _kappa(inputs._replace(credit=torch.zeros_like(inputs.credit)), built, step.denominator)
    evaluated = inputs._replace(credit=inputs.credit.abs()) if overlook.sign else inputs
    by_credit = _kappa(evaluated, built, step.denominator) - without_credit
    by_credit = inputs.credit.sign() * by_credit if overlook.sign else by_credit
    return by_credit if overlook.penalty else by_credit + without_credit


def residual(scene: Scene, assigned: Assigned, plan: StepPlan, built: AggregatedObjective, overlook: Switches = AS_IT_IS) -> float | None:
    """0 = everything shared cancels, 1 = nothing does; None where no shared token receives anything at all."""
    left, total = 0.0, 0.0
    for step in plan.steps:
        rows = torch.tensor(step.rows)
        kappa = step_kappa(scene, assigned, step, built, overlook).where(scene.shared[rows], 0.0)
        index = torch.unique(scene.group[rows], return_inverse=True)[1]
        net = torch.zeros(int(index.max()) + 1, kappa.shape[1], dtype=kappa.dtype).index_add_(0, index, kappa)
        left += float(net.abs().sum())
        total += float(kappa.abs().sum())
    return left / total if total > 0 else None


CAUSES: dict[str, str] = {
    "advantage": "the advantages of a group do not sum to 0",
    "divisor": "the length divisor differs between siblings",
    "ratio": "a weight made of the whole response (sequence ratio) differs between siblings",
    "clip": "clip, gate or selection depends on the sign of credit",
    "balance": "balancing the two sides scales or leaves out responses of a group",
    "cut": "siblings fall into different optimizer steps",
    "coefficient": "credit coefficients differ between siblings",
    "penalty": "a term that does not depend on credit (KL, an entropy bonus) pushes all siblings alike",
}


def _centred(advantage: Tensor, group: Tensor) -> Tensor:
    return advantage - group_statistics(advantage, group).mean


def _without_coefficient(assigned: Assigned, scene: Scene) -> Assigned:
    coefficient = scene.mask.double()
    return assigned._replace(coefficient=coefficient, credit=coefficient * assigned.advantage[:, None])


def _without_mean(assigned: Assigned, scene: Scene) -> Assigned:
    """Credit made of coefficients is made again; credit assigned directly is shifted as its advantage is."""
    centred = _centred(assigned.advantage, scene.group)
    if assigned.coefficient is not None:
        return assigned._replace(advantage=centred, credit=assigned.coefficient * centred[:, None])
    shifted = assigned.credit + (centred - assigned.advantage)[:, None]
    return assigned._replace(advantage=centred, credit=shifted.where(scene.mask, 0.0))


def _without_drift_apart(scene: Scene) -> Scene:
    """Only shared tokens differ from what they were, so that whatever is made of a whole response is the same for all siblings."""

    def only_shared(logp: Tensor) -> Tensor:
        return torch.where(scene.shared, logp, scene.old_logp)

    return replace(scene, logp=only_shared(scene.logp), behavior_logp=only_shared(scene.behavior_logp))


def _of_one_length(scene: Scene) -> Scene:
    length = scene.mask.sum(-1)
    shortest = torch.stack([length[scene.group == name].min() for name in scene.group])
    mask = scene.mask & (torch.arange(scene.mask.shape[1]) < shortest[:, None])
    return replace(scene, mask=mask, shared=scene.shared & mask)


def _without_covariance_penalty(recipe: Recipe) -> Recipe:
    """KL-Cov chooses by credit which tokens to penalise, so its penalty is not what a token without credit receives."""
    if not isinstance(recipe.objective, KlCovObjective):
        return recipe
    return varied(recipe, objective=recipe.objective.model_copy(update={"penalty": 0.0}))


def _without_balance(recipe: Recipe) -> Recipe:
    """Deal as the balancing would, but neither scale nor leave out."""
    batching = recipe.batching
    if not isinstance(batching, RewardBalancedBatching) or batching.method == "assign":
        return recipe
    return varied(recipe, batching=QueryPreservedBatching() if batching.keep_queries else ShuffledBatching())


def residual_without(subject: Subject, scene: Scene, off: frozenset[str]) -> float | None:
    """The residual with the terms named in `off` switched off. Credit and plan are made before lengths are cut or drift is stopped."""
    recipe = _without_covariance_penalty(subject.recipe) if "penalty" in off else subject.recipe
    recipe = _without_balance(recipe) if "balance" in off else recipe
    subject = subject._replace(recipe=recipe)
    built = subject.built()
    assigned = assign(recipe, scene)
    if "coefficient" in off:
        assigned = _without_coefficient(assigned, scene)
    if "advantage" in off:
        assigned = _without_mean(assigned, scene)
    if "cut" in off:
        scene = replace(scene, optimizer_steps=1)
    plan = plan_for(recipe, scene, assigned.advantage, built)
    if "divisor" in off:
        scene = _of_one_length(scene)
    if "ratio" in off:
        scene = _without_drift_apart(scene)
        assigned = assigned._replace(correction=assign(recipe, scene).correction)
    return residual(scene, assigned, plan, built, Switches(sign="clip" in off, penalty="penalty" in off))


OTHER = "other"
"""What no switch removes."""


def find_causes(measure: Callable[[frozenset[str]], float | None]) -> tuple[str, ...]:
    """Terms that alone, with every other one switched off, leave a residual; failing that, terms without which there is none."""

    def left(off: frozenset[str]) -> float:
        return measure(off) or 0.0

    every = frozenset(CAUSES)
    unexplained = left(every)
    alone = tuple(cause for cause in CAUSES if abs(left(every - {cause}) - unexplained) > ZERO)
    if unexplained > ZERO:
        return (*alone, OTHER)
    return alone or tuple(cause for cause in CAUSES if left(frozenset({cause})) <= ZERO)


class Cell(NamedTuple):
    """One condition for one recipe."""

    residual: float | None
    """None: no shared token receives anything; there is nothing to cancel."""
    causes: tuple[str, ...]

    @property
    def silent(self) -> bool:
        return self.residual is None

    @property
    def cancels(self) -> bool:
        return self.residual is not None and self.residual <= ZERO


def audit_cell(subject: Subject, scene: Scene) -> Cell:
    found = residual_without(subject, scene, frozenset())
    if found is None or found <= ZERO:
        return Cell(found, ())
    return Cell(found, find_causes(lambda off: residual_without(subject, scene, off)))

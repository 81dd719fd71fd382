"""How much of the update on shared tokens fails to cancel: |sum kappa| / sum |kappa|, step by step and token by token."""

from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.audit.scene import Scene
from tokencredit.audit.subject import Assigned
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
    """What the objective is made to overlook."""

    sign: bool = False
    """Ask about positive credit only and put the signs back: what it would do if it treated both signs alike."""
    penalty: bool = False
    """Take away what it sends to a token without credit."""


AS_IT_IS = Switches()


def step_kappa(scene: Scene, assigned: Assigned, step: PlannedStep, built: AggregatedObjective, overlook: Switches = AS_IT_IS) -> Tensor:
    """dJ/d logp of every token of one optimizer step, [row of the step, token]."""
    inputs = _step_inputs(scene, assigned, step)
    if overlook == AS_IT_IS:
        return _kappa(inputs, built, step.denominator)
    without_credit = _kappa(inputs._replace(credit=torch.zeros_like(inputs.credit)), built, step.denominator)
    asked = inputs._replace(credit=inputs.credit.abs()) if overlook.sign else inputs
    by_credit = _kappa(asked, built, step.denominator) - without_credit
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

"""The optimizer steps of one plan: micro-batches in, weights moved, denominators from the plan."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.build import AggregatedObjective
from tokencredit.engine.local.policy import Policy
from tokencredit.errors import GuardError
from tokencredit.kernels import token_logp
from tokencredit.masked import masked_sum
from tokencredit.objective import TokenInputs, token_weight
from tokencredit.objective.kappa import token_kappa
from tokencredit.objective.ratio import importance_ratio
from tokencredit.probe.forward import precision, response_extent, response_logits
from tokencredit.seeds import derive_seed
from tokencredit.types import Credited, PlannedStep, StepPlan, StepResult


class _MicroBatch(NamedTuple):
    prompts: list[tuple[int, ...]]
    tokens: Tensor
    inputs: TokenInputs
    """With the old log-probs standing in for `logp` until the pass has run."""
    length: Tensor
    """Loss tokens of each whole response."""


def _gather(credited: Credited, rows: tuple[int, ...], scale: dict[int, float] | None, seed: int) -> _MicroBatch:
    rollouts = credited.rollouts
    index = torch.tensor(rows, device=rollouts.tokens.device)
    width = max(1, int(response_extent(rollouts.mask[index]).max()))
    mask = rollouts.loss_mask[index]
    old_logp = credited.old_logp[index, :width]
    factor = torch.ones_like(old_logp[:, 0]) if scale is None else old_logp.new_tensor([scale[row] for row in rows])

    def in_batch(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[index, :width].to(old_logp.dtype)

    inputs = TokenInputs(
        logp=old_logp,
        old_logp=old_logp,
        credit=credited.credit[index, :width].to(old_logp.dtype) * factor[:, None],
        mask=mask[:, :width],
        group=rollouts.group[index],
        reference_logp=in_batch(credited.reference_logp),
        advantage=credited.advantage[index].to(old_logp.dtype).where(credited.scored.graded[index], torch.nan) * factor,
        row=index,
        seed=seed,
        correction=in_batch(credited.correction),
    )
    length = mask.sum(-1).to(old_logp.dtype)
    return _MicroBatch([rollouts.prompts[row] for row in rows], rollouts.tokens[index, :width], inputs, length)


def _scales(step: PlannedStep) -> dict[int, float] | None:
    return None if step.credit_scale is None else dict(zip(step.rows, step.credit_scale, strict=True))


def _logp(policy: Policy, batch: _MicroBatch, temperature: float, dtype: str) -> Tensor:
    with precision(policy.model, dtype):
        logits = response_logits(policy.model, batch.prompts, batch.tokens).logits
    return token_logp(logits, batch.tokens, temperature=temperature)


@torch.no_grad()
def _statistic(batches: Iterable[_MicroBatch], built: AggregatedObjective, logp_of: Callable[[_MicroBatch], Tensor]) -> Any:
    """One pass over the whole optimizer step before its first micro-batch, where the objective asks for it."""
    if built.objective.statistic is None:
        return None
    accumulator = built.objective.statistic()
    for batch in batches:
        accumulator.add(batch.inputs._replace(logp=logp_of(batch)))
    return accumulator.finish()


def _rows_that_matter(credited: Credited, step: PlannedStep, built: AggregatedObjective, only: Tensor | None) -> list[tuple[int, ...]]:
    """Responses without credit (dead groups) give no gradient; passing them through the model would only cost time."""
    matters = credited.rollouts.mask if only is None else only
    if built.objective.silent_without_credit:
        matters = matters & (credited.credit != 0)
    elif only is None:
        return list(step.micro_batches)
    wanted = matters.any(-1).tolist()
    kept = (tuple(row for row in rows if wanted[row]) for rows in step.micro_batches)
    return [rows for rows in kept if rows]


class StepGradient(NamedTuple):
    """Left in the parameters' `.grad`; these are the numbers beside it."""

    loss: float
    silenced_share: float
    ratio_mean: float
    """Over the tokens that were passed through the model."""


def accumulate_gradient(
    policy: Policy,
    credited: Credited,
    step: PlannedStep,
    built: AggregatedObjective,
    *,
    temperature: float,
    dtype: str = "float32",
    seed: int = 0,
    only: Tensor | None = None,
) -> StepGradient:
    """Add the gradient of one optimizer step to `.grad`; cutting the step into other micro-batches changes nothing.

    The objective is differentiated by log-prob alone, kappa = dJ/d logp, and kappa is sent back through the model:
    the same kappa that an audit inspects, and where it is zero on a credited token the objective has silenced it.
    With `only` (responses x tokens) just the part that comes from those tokens is added; the parts of a partition sum to the whole.
    """
    scale = _scales(step)
    every = (_gather(credited, rows, scale, seed) for rows in step.micro_batches)
    statistic = _statistic(every, built, lambda batch: _logp(policy, batch, temperature, dtype))
    loss, silenced, credited_tokens, ratio_total, tokens = 0.0, 0, 0, 0.0, 0
    for rows in _rows_that_matter(credited, step, built, only):
        batch = _gather(credited, rows, scale, seed)
        logp = _logp(policy, batch, temperature, dtype)
        inputs = batch.inputs._replace(logp=logp.detach())
        weight = token_weight(inputs.mask, batch.length, aggregation=built.aggregation)
        kappa, share = token_kappa(built.objective, inputs, statistic, weight, denominator=step.denominator)
        logp.backward(kappa if only is None else kappa.where(only[inputs.row, : kappa.shape[1]], 0.0))
        has_credit = (inputs.credit != 0) & inputs.mask
        if inputs.correction is not None:
            has_credit &= inputs.correction != 0
        loss += share
        silenced += int((has_credit & (kappa == 0)).sum())
        credited_tokens += int(has_credit.sum())
        ratio_total += float(masked_sum(importance_ratio(inputs.logp, inputs.old_logp), inputs.mask))
        tokens += int(inputs.mask.sum())
    for parameter in policy.model.parameters():
        # A step without any credit is a step with gradient zero, not a step that the optimizer may skip.
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return StepGradient(loss, silenced / max(1, credited_tokens), ratio_total / tokens if tokens else 1.0)


def step_kappa(
    credited: Credited, step: PlannedStep, built: AggregatedObjective, logp: Float[Tensor, "seq tok"], *, seed: int = 0
) -> Float[Tensor, "seq tok"]:
    """The kappa that one optimizer step would send back at these log-probs; 0 for responses outside it."""
    scale = _scales(step)
    batches = [_gather(credited, rows, scale, seed) for rows in step.micro_batches]

    def known(batch: _MicroBatch) -> Tensor:
        return logp[batch.inputs.row, : batch.tokens.shape[1]].to(batch.inputs.old_logp)

    statistic = _statistic(batches, built, known)
    found = torch.zeros_like(logp)
    for batch in batches:
        weight = token_weight(batch.inputs.mask, batch.length, aggregation=built.aggregation)
        inputs = batch.inputs._replace(logp=known(batch))
        kappa = token_kappa(built.objective, inputs, statistic, weight, denominator=step.denominator).kappa
        found[batch.inputs.row, : kappa.shape[1]] = kappa.to(found)
    return found


class TakenStep(NamedTuple):
    gradient: StepGradient
    norm: float
    """Of the whole gradient, before it was clipped."""


def step_seed(seed: int, number: int) -> int:
    """For the draws of optimizer step `number` of a plan, counted from 0."""
    return derive_seed(seed, "optimizer-step", number)


def run_plan(
    policy: Policy,
    credited: Credited,
    plan: StepPlan,
    built: AggregatedObjective,
    optimizer: torch.optim.Optimizer,
    *,
    temperature: float,
    gradient_clip: float,
    dtype: str = "float32",
    seed: int = 0,
    watch: Callable[[int, float], None] | None = None,
) -> StepResult:
    """Take every optimizer step of the plan. A loss or gradient that is not finite stops before its step is taken.

    `watch(number, gradient_norm)` is called after each optimizer step; it may look at policy and optimizer, never change them.
    """
    taken: list[TakenStep] = []
    # The model stays in eval mode: dropout would draw from the global generator and make ratios differ from 1 on policy.
    for number, step in enumerate(plan.steps):
        optimizer.zero_grad(set_to_none=True)
        gradient = accumulate_gradient(policy, credited, step, built, temperature=temperature, dtype=dtype, seed=step_seed(seed, number))
        norm = float(torch.nn.utils.clip_grad_norm_(policy.model.parameters(), gradient_clip))
        for name, value in (("loss", gradient.loss), ("gradient norm", norm)):
            if not torch.isfinite(torch.tensor(value)):
                raise GuardError(f"{name} is {value} in optimizer step {number + 1} of {len(plan.steps)}; this step was not taken")
        optimizer.step()
        taken.append(TakenStep(gradient, norm))
        if watch is not None:
            watch(number, norm)
    return StepResult(
        loss=tuple(step.gradient.loss for step in taken),
        gradient_norm=tuple(step.norm for step in taken),
        silenced_share=tuple(step.gradient.silenced_share for step in taken),
        ratio_mean=tuple(step.gradient.ratio_mean for step in taken),
    )

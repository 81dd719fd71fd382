"""The optimizer steps of one plan: micro-batches, gradients, clipping, and denominators from the plan."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.batching.microbatch import pass_tokens
from tokencredit.errors import BadNumbersError
from tokencredit.forward.memory import Notify, ignore, recut, retry_with_half_budget
from tokencredit.forward.modes import ForwardOptions, activation_checkpointing
from tokencredit.forward.packed import packed_scores
from tokencredit.forward.packed_scoring import HostRows, on_host
from tokencredit.forward.padded import precision, response_logits, row_cost, trainable_parameters
from tokencredit.kernels import token_logp
from tokencredit.masked import masked_sum
from tokencredit.objective import TokenInputs
from tokencredit.objective.base import importance_ratio
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.guards import GRADIENT_NORM, LOSS, describe_rows
from tokencredit.pipeline.microbatch import MicroBatch, gather_rows, step_seed, step_statistic
from tokencredit.policy.policy import Policy
from tokencredit.types import Credited, PlannedStep, StepPlan, StepResult


class _MicroBatchPass(NamedTuple):
    """A micro-batch and the model inputs of its pass."""

    rows: HostRows
    tokens: Tensor
    batch: MicroBatch


def _micro_batch(
    credited: Credited, host: HostRows, step: PlannedStep, built: AggregatedObjective, seed: int, rows: tuple[int, ...]
) -> _MicroBatchPass:
    """Some rows of an optimizer step; `host` tells their width without waiting for the device."""
    part, rollouts = host.cut(rows), credited.rollouts
    index, width = torch.tensor(rows).to(rollouts.tokens.device, non_blocking=True), part.tokens.shape[1]
    batch = gather_rows(credited, step, index, built, width=width, seed=seed)
    return _MicroBatchPass(part, rollouts.tokens[index, :width], batch)


def _logp(policy: Policy, batch: _MicroBatchPass, options: ForwardOptions) -> Tensor:
    model, (prompts, tokens, mask, *_) = policy.model, batch.rows
    checkpointing = activation_checkpointing(model) if options.recompute else nullcontext()
    with precision(model, options.dtype), options.mode.context(model), checkpointing:
        if options.mode.packed:
            return packed_scores(model, prompts, tokens, mask, temperature=options.temperature).logp
        logits = response_logits(model, prompts, batch.tokens).logits
    return token_logp(logits, batch.tokens, temperature=options.temperature)


def _rows_with_gradient(credited: Credited, step: PlannedStep, built: AggregatedObjective, only: Tensor | None) -> list[tuple[int, ...]]:
    """The micro-batches without responses that have no credit (dead groups): they give no gradient and would only cost time."""
    matters = credited.rollouts.mask if only is None else only
    if built.objective.silent_without_credit:
        matters = matters & (credited.credit != 0)
    elif only is None:
        return list(step.micro_batches)
    wanted = matters.any(-1).tolist()
    kept = (tuple(row for row in rows if wanted[row]) for rows in step.micro_batches)
    return [rows for rows in kept if rows]


class StepLoss(NamedTuple):
    """The numbers of one optimizer step; its gradient is in the parameters' `.grad`."""

    loss: float
    silenced_share: float
    ratio_mean: float
    """Mean over the tokens of all passes."""


def accumulate_gradient(
    policy: Policy,
    credited: Credited,
    step: PlannedStep,
    built: AggregatedObjective,
    options: ForwardOptions,
    *,
    seed: int = 0,
    only: Tensor | None = None,
    host: HostRows | None = None,
) -> StepLoss:
    """Add the gradient of one optimizer step to `.grad`; cutting the step into other micro-batches changes nothing.

    The objective is differentiated by log-prob alone, kappa = dJ/d logp, and kappa is backpropagated through the model:
    the same kappa that an audit inspects; where it is zero on a credited token, the objective has silenced the token.
    With `only` (responses x tokens) just the part from those tokens is added; the parts of a partition sum to the full gradient.
    `host` is `on_host(credited.rollouts)`, if the caller already has it.
    """
    micro_batch = partial(_micro_batch, credited, host or on_host(credited.rollouts), step, built, seed)
    every = (micro_batch(rows) for rows in step.micro_batches)
    scored = (passed.batch.inputs._replace(logp=_logp(policy, passed, replace(options, recompute=False))) for passed in every)
    statistic = step_statistic(built.objective, scored)
    shares: list[_Share] = []
    for rows in _rows_with_gradient(credited, step, built, only):
        passed = micro_batch(rows)
        if not any(passed.rows.extent):
            continue
        logp = _logp(policy, passed, options)
        inputs = passed.batch.inputs._replace(logp=logp.detach())
        kappa, loss = token_kappa(built.objective, inputs, statistic, passed.batch.weight, denominator=step.denominator)
        logp.backward(kappa if only is None else kappa.where(only[inputs.row, : kappa.shape[1]], 0.0))
        shares.append(_Share(inputs, kappa, loss))
    for parameter in trainable_parameters(policy.model).values():
        # Without any credit the gradient is zero; the optimizer must not skip the step.
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return _summed(shares)


class _Share(NamedTuple):
    """One micro-batch's contribution to an optimizer step. Its numbers stay on the device: reading one would synchronize."""

    inputs: TokenInputs
    kappa: Tensor
    loss: Tensor

    def numbers(self) -> Tensor:
        inputs = self.inputs
        has_credit = (inputs.credit != 0) & inputs.mask
        if inputs.correction is not None:
            has_credit &= inputs.correction != 0
        silenced = (has_credit & (self.kappa == 0)).sum()
        ratio = masked_sum(importance_ratio(inputs.logp, inputs.old_logp), inputs.mask)
        return torch.stack([number.double() for number in (self.loss, silenced, has_credit.sum(), ratio, inputs.mask.sum())])


def _summed(shares: Sequence[_Share]) -> StepLoss:
    """Sum the shares: the only synchronization of an optimizer step before its gradient norm."""
    read = torch.stack([share.numbers() for share in shares]).tolist() if shares else []
    for (loss, *_), share in zip(read, shares, strict=True):
        if not math.isfinite(loss):
            raise _bad_loss(loss, share.inputs, share.kappa)
    loss, silenced, with_credit, ratio, tokens = (sum(column) for column in zip(*read, strict=True)) if read else (0.0,) * 5
    return StepLoss(loss, silenced / max(1, with_credit), ratio / tokens if tokens else 1.0)


def _bad_loss(share: float, inputs: TokenInputs, kappa: Tensor) -> BadNumbersError:
    broken = (~(inputs.logp.isfinite() & kappa.isfinite()) & inputs.mask).any(-1)
    assert inputs.row is not None
    rows = inputs.row[broken if bool(broken.any()) else torch.ones_like(broken)].tolist()
    return BadNumbersError(LOSS, f"loss is {share} in {describe_rows(rows)}", rows)


def step_kappa(
    credited: Credited, step: PlannedStep, built: AggregatedObjective, logp: Float[Tensor, "seq tok"], *, seed: int = 0
) -> Float[Tensor, "seq tok"]:
    """The kappa that one optimizer step would backpropagate at these log-probs; 0 for responses outside it."""
    micro_batch = partial(_micro_batch, credited, on_host(credited.rollouts), step, built, seed)
    batches = [micro_batch(rows).batch for rows in step.micro_batches]

    def known(inputs: TokenInputs) -> TokenInputs:
        return inputs._replace(logp=logp[inputs.row, : inputs.mask.shape[1]].to(inputs.old_logp))

    statistic = step_statistic(built.objective, (known(batch.inputs) for batch in batches))
    found = torch.zeros_like(logp)
    for batch in batches:
        kappa = token_kappa(built.objective, known(batch.inputs), statistic, batch.weight, denominator=step.denominator).kappa
        found[batch.inputs.row, : kappa.shape[1]] = kappa.to(found)
    return found


class OptimizerStepResult(NamedTuple):
    loss: float
    silenced_share: float
    ratio_mean: float
    gradient_norm: float
    """Norm of the full gradient before clipping."""


def as_result(done: Sequence[OptimizerStepResult]) -> StepResult:
    return StepResult(
        loss=tuple(step.loss for step in done),
        gradient_norm=tuple(step.gradient_norm for step in done),
        silenced_share=tuple(step.silenced_share for step in done),
        ratio_mean=tuple(step.ratio_mean for step in done),
    )


def as_done(result: StepResult) -> list[OptimizerStepResult]:
    each = zip(result.loss, result.silenced_share, result.ratio_mean, result.gradient_norm, strict=True)
    return [OptimizerStepResult(*numbers) for numbers in each]


class UpdateOptions(NamedTuple):
    forward: ForwardOptions
    gradient_clip: float
    seed: int = 0


def optimizer_steps(
    policy: Policy,
    credited: Credited,
    plan: StepPlan,
    built: AggregatedObjective,
    optimizer: torch.optim.Optimizer,
    options: UpdateOptions,
    *,
    first: int = 0,
    notify: Notify = ignore,
) -> Iterator[OptimizerStepResult]:
    """Take the optimizer steps of the plan from `first` on, one for each result that the caller requests.

    A loss or gradient that is not finite raises before its step is taken. Between two results the caller may read the
    policy and the optimizer, or stop; it must not change them.
    """
    forward, packed = options.forward, options.forward.mode.packed
    cost, host = row_cost(credited.rollouts), on_host(credited.rollouts)
    # The model stays in eval mode: dropout would draw from the global generator and make on-policy ratios differ from 1.
    for number in range(first, len(plan.steps)):
        step, seed = plan.steps[number], step_seed(options.seed, number)
        longest = max((cost[row] for row in step.rows), default=1)
        budget = max((pass_tokens(rows, cost, packed=packed) for rows in step.micro_batches), default=1)
        if forward.max_tokens is not None and budget > max(forward.max_tokens, longest):
            budget = max(forward.max_tokens, longest)
            step = recut(step, cost, max_tokens=budget, packed=packed)

        def gradient_of(tokens: int, step: PlannedStep = step, seed: int = seed, budget: int = budget) -> tuple[PlannedStep, StepLoss]:
            optimizer.zero_grad(set_to_none=True)
            cut = step if tokens == budget else recut(step, cost, max_tokens=tokens, packed=packed)
            return cut, accumulate_gradient(policy, credited, cut, built, forward, seed=seed, host=host)

        where = f"optimizer step {number + 1} of {len(plan.steps)}"
        free_memory = partial(_free_memory, policy, optimizer)
        try:
            cut, found = retry_with_half_budget(
                gradient_of, budget=budget, longest=longest, doing=f"taking {where}", notify=notify, free_memory=free_memory
            )
            norm = float(torch.nn.utils.clip_grad_norm_(trainable_parameters(policy.model).values(), options.gradient_clip))
            if not math.isfinite(norm):
                raise _bad_gradient(policy, credited, cut, built, norm, forward, seed=seed)
        except BadNumbersError as bad:
            optimizer.zero_grad()
            raise BadNumbersError(bad.stage, f"{bad}, in {where}; this step was not taken", bad.rows) from None
        optimizer.step()
        yield OptimizerStepResult(*found, norm)


def run_plan(
    policy: Policy,
    credited: Credited,
    plan: StepPlan,
    built: AggregatedObjective,
    optimizer: torch.optim.Optimizer,
    options: UpdateOptions,
    *,
    after_step: Callable[[int, float], None] = lambda number, gradient_norm: None,
    notify: Notify = ignore,
) -> StepResult:
    """Take every optimizer step of the plan."""
    done: list[OptimizerStepResult] = []
    for number, result in enumerate(optimizer_steps(policy, credited, plan, built, optimizer, options, notify=notify)):
        done.append(result)
        after_step(number, result.gradient_norm)
    return as_result(done)


def _free_memory(policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    policy.release()


def _bad_gradient(
    policy: Policy,
    credited: Credited,
    step: PlannedStep,
    built: AggregatedObjective,
    norm: float,
    options: ForwardOptions,
    *,
    seed: int,
) -> BadNumbersError:
    """The error for a non-finite gradient; repeats the step one micro-batch at a time to find the responses that cause it."""
    broken: list[int] = []
    for rows in step.micro_batches:
        policy.model.zero_grad(set_to_none=True)
        only = torch.zeros_like(credited.rollouts.mask)
        only[list(rows)] = True
        accumulate_gradient(policy, credited, step, built, options, seed=seed, only=only & credited.rollouts.mask)
        found = (parameter.grad for parameter in trainable_parameters(policy.model).values() if parameter.grad is not None)
        if not all(bool(gradient.isfinite().all()) for gradient in found):
            broken += rows
    rows = broken or list(step.rows)
    return BadNumbersError(GRADIENT_NORM, f"gradient norm is {norm} from {describe_rows(rows)}", rows)

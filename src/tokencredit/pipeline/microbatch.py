"""The micro-batches of an optimizer step in any engine: rows with their credit, statistics over the whole step, the loss."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.masked import masked_sum
from tokencredit.objective import Objective, TokenInputs, token_weight
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.distributed import SINGLE_PROCESS, ProcessGroup
from tokencredit.seeds import derive_seed
from tokencredit.types import Credited, PlannedStep


class MicroBatch(NamedTuple):
    inputs: TokenInputs
    """`logp` holds the old log-probs until the forward pass replaces them."""
    weight: Float[Tensor, "seq tok"]
    """Of each token's loss, before the denominator."""
    denominator: float


def step_seed(seed: int, number: int) -> int:
    """For the random draws of optimizer step `number` of a plan, counted from 0."""
    return derive_seed(seed, "optimizer-step", number)


def gather_rows(
    credited: Credited, step: PlannedStep, rows: Int[Tensor, " some"], built: AggregatedObjective, *, width: int, seed: int
) -> MicroBatch:
    """The rows of one micro-batch of a planned step, `width` tokens wide."""
    rollouts = credited.rollouts
    mask = rollouts.loss_mask[rows]
    old_logp = credited.old_logp[rows, :width]
    factor = _scales(step, len(rollouts.mask), old_logp)[rows]

    def in_batch(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[rows, :width].to(old_logp.dtype)

    inputs = TokenInputs(
        logp=old_logp,
        old_logp=old_logp,
        credit=credited.credit[rows, :width].to(old_logp.dtype) * factor[:, None],
        mask=mask[:, :width],
        group=rollouts.group[rows],
        reference_logp=in_batch(credited.reference_logp),
        advantage=credited.advantage[rows].to(old_logp.dtype).where(credited.scored.graded[rows], torch.nan) * factor,
        row=rows,
        seed=seed,
        correction=in_batch(credited.correction),
    )
    weight = token_weight(inputs.mask, mask.sum(-1).to(old_logp.dtype), aggregation=built.aggregation)
    return MicroBatch(inputs, weight, step.denominator)


def _scales(step: PlannedStep, rows: int, like: Tensor) -> Float[Tensor, " seq"]:
    """What the step multiplies the credit of each of its rows by; no number for any other row.

    It covers every row, so that the host need not read the requested row numbers, which would wait for the device.
    """
    if step.credit_scale is None:
        return like.new_ones(rows)
    scales = torch.full((rows,), torch.nan, dtype=like.dtype)
    scales[list(step.rows)] = torch.tensor(step.credit_scale, dtype=like.dtype)
    return scales.to(like.device, non_blocking=True)


@torch.no_grad()
def step_statistic(objective: Objective, batches: Iterable[TokenInputs], ranks: ProcessGroup = SINGLE_PROCESS) -> Any:
    """Over every micro-batch of an optimizer step, of all ranks, before its first one is used; None where the objective needs none."""
    if objective.statistic is None:
        return None
    accumulator = objective.statistic()
    for inputs in batches if ranks.count == 1 else [inputs for part in ranks.gather(list(batches)) for inputs in part]:
        accumulator.add(inputs)
    return accumulator.finish()


def micro_batch_loss(objective: Objective, batch: MicroBatch, logp: Float[Tensor, "seq tok"], statistic: Any) -> Float[Tensor, ""]:
    """This micro-batch's share of the step's loss: shares sum to the whole over micro-batches and ranks."""
    token_loss = objective.token_loss(batch.inputs._replace(logp=logp), statistic)
    return masked_sum(batch.weight * token_loss, batch.inputs.mask) / batch.denominator

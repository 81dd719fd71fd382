"""Our side: an objective run as an engine runs it, statistics of the step first, then kappa over the plan's denominator."""

from typing import Any

import torch
from torch import Tensor

from crosscheck.agreement import Loss
from crosscheck.batches import Batch
from tokencredit.batching.microbatch import step_denominator
from tokencredit.objective import Objective, TokenInputs, token_weight
from tokencredit.objective.kappa import token_kappa


def our_loss(
    objective: Objective,
    batch: Batch,
    credit: Tensor,
    *,
    aggregation: str = "token-mean",
    constant_length: int | None = None,
    correction: Tensor | None = None,
) -> Loss:
    inputs = TokenInputs(
        logp=batch.logp,
        old_logp=batch.old_logp,
        credit=credit,
        mask=batch.mask,
        group=batch.group,
        reference_logp=batch.reference_logp,
        advantage=batch.advantage,
        row=torch.arange(len(batch.group)),
        correction=correction,
    )
    statistic = None
    if objective.statistic is not None:
        accumulator = objective.statistic()
        accumulator.add(inputs)
        statistic = accumulator.finish()
    weight = token_weight(batch.mask, batch.length.double(), aggregation=aggregation)
    denominator = step_denominator(batch.length.tolist(), aggregation=aggregation, constant_length=constant_length)
    kappa, value = token_kappa(objective, inputs, statistic, weight, denominator=denominator)
    return Loss(value.double(), kappa)


def halved_knobs(knobs: dict[str, Any]) -> list[dict[str, float]]:
    """Every number of an objective halved, one at a time."""
    return [{name: value / 2} for name, value in knobs.items() if isinstance(value, float)]

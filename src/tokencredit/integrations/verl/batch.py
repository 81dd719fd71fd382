"""A batch on verl's driver: credited, planned, and turned into fields that every worker gets with its rows. Knows no Ray."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.errors import GuardError
from tokencredit.integrations.hooks.responses import group_numbers
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline, MethodState, ModelFacts, RequestCoefficients
from tokencredit.pipeline.distributed import share_evenly
from tokencredit.pipeline.microbatch import gather_rows, step_seed
from tokencredit.types import Credited, Rollouts, StepPlan, TokenScores


class DriverBatch(NamedTuple):
    """Responses padded on the right, without the rows that only fill up a batch."""

    uid: Sequence[str]
    prompt_length: Sequence[int]
    tokens: Tensor
    mask: Tensor
    score: Tensor
    old_logp: Tensor
    entropy: Tensor
    sampler_logp: Tensor | None = None
    reference_logp: Tensor | None = None

    def rollouts(self, end_tokens: Sequence[int]) -> Rollouts:
        mask = self.mask.bool()
        last = (torch.arange(1, mask.shape[1] + 1) * mask).amax(-1)
        ends = torch.isin(self.tokens.gather(1, (last - 1).clamp(min=0)[:, None])[:, 0], torch.tensor(list(end_tokens)))
        behavior = self.old_logp if self.sampler_logp is None else self.sampler_logp
        return Rollouts(
            # Only lengths of prompts matter from here on.
            prompts=tuple((0,) * length for length in self.prompt_length),
            tokens=self.tokens,
            mask=mask,
            group=group_numbers(self.uid),
            behavior_logp=behavior.float().where(mask, 0.0),
            finished=ends & (last > 0),
        )


def credit_batch(
    pipeline: CreditPipeline,
    batch: DriverBatch,
    state: MethodState,
    *,
    seed: int,
    end_tokens: Sequence[int],
    request_coefficients: RequestCoefficients,
) -> tuple[Credited, MethodState]:
    """The workers are asked for coefficients only where the recipe's credit reads hidden states, which they hold."""
    rollouts = batch.rollouts(end_tokens)
    logp, entropy = (value.float().where(rollouts.mask, 0.0) for value in (batch.old_logp, batch.entropy))
    return pipeline.credit(
        rollouts,
        batch.score.float(),
        BatchEvidence(TokenScores(logp, entropy, None), batch.reference_logp, model=ModelFacts(end_tokens=tuple(end_tokens))),
        state,
        seed=seed,
        request_coefficients=request_coefficients,
    )


class ArrangedBatch(NamedTuple):
    fields: dict[str, Tensor]
    """What the loss needs of every row, the filling ones included; responses x tokens or responses."""
    order: list[int]
    """Rows as verl must hold them: rank by rank, and on each rank optimizer step by optimizer step."""


def arrange(
    pipeline: CreditPipeline, credited: Credited, plan: StepPlan, *, rows: int, steps: int, ranks: int, cost: Sequence[int], seed: int
) -> ArrangedBatch:
    """Mini-batches are of one size in verl: rows that the plan leaves out, and filling ones after the real, fill them up."""
    width = credited.credit.shape[1]
    size = rows // steps
    fields = _silent_fields(rows, width, credited)
    free = sorted(set(range(rows)) - {row for step in plan.steps for row in step.rows})
    steps_rows: list[list[int]] = []
    for number in range(steps):
        step = plan.steps[number] if number < len(plan.steps) else None
        taken = [] if step is None else list(step.rows)
        if len(taken) > size:
            raise GuardError(f"optimizer step {number + 1} of the plan has {len(taken)} rows, but a mini-batch of verl holds {size}")
        if step is not None:
            index = torch.tensor(taken)
            made = gather_rows(credited, step, index, pipeline.objective, width=width, seed=step_seed(seed, number))
            fields["credit"][index] = made.inputs.credit
            fields["weight"][index] = made.weight / made.denominator
            fields["mask"][index] = made.inputs.mask
            fields["group"][index] = made.inputs.group
            fields["advantage"][index] = made.inputs.advantage if made.inputs.advantage is not None else torch.nan
            if made.inputs.correction is not None:
                fields["correction"][index] = made.inputs.correction
        filled = taken + [free.pop() for _ in range(size - len(taken))]
        fields["seed"][torch.tensor(filled)] = step_seed(seed, number)
        steps_rows.append(filled)
    shares = [share_evenly(rows_of_step, cost, ranks=ranks) for rows_of_step in steps_rows]
    return ArrangedBatch(fields, [row for rank in range(ranks) for share in shares for row in share[rank]])


def _silent_fields(rows: int, width: int, credited: Credited) -> dict[str, Tensor]:
    fields = {
        "credit": torch.zeros(rows, width),
        "weight": torch.zeros(rows, width),
        "mask": torch.zeros(rows, width, dtype=torch.bool),
        "row": torch.arange(rows),
        "group": -1 - torch.arange(rows),
        "advantage": torch.full((rows,), torch.nan),
        "seed": torch.zeros(rows, dtype=torch.long),
    }
    return fields if credited.correction is None else fields | {"correction": torch.ones(rows, width)}

"""TRL's batch of generations, one dict of rows per rank: join it over ranks, and cut this rank's micro-batches from the plan."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokencredit.errors import ConfigError, GuardError
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.distributed import ProcessGroup, deal_micro_batches
from tokencredit.pipeline.microbatch import MicroBatch, gather_rows, step_seed
from tokencredit.types import Credited, PlannedStep, Rollouts, StepPlan

LEFT_PADDED = frozenset({"prompt_ids", "prompt_mask"})
PADDED = LEFT_PADDED | {
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "scored_logp",
    "entropy",
}
FILLED_WITH = {"tool_mask": 1}
"""As TRL pads; everything else gets the padding token or 0."""

Rows = dict[str, Any]
"""Tensors and lists have the row as their first axis; numbers and None belong to the batch."""


def join_ranks(rows: Rows, ranks: ProcessGroup, *, pad_token: int) -> Rows:
    """The rows of all ranks in their order, padded to one width."""
    if ranks.count == 1:
        return rows
    unknown = sorted(key for key, value in rows.items() if _is_per_row(value) and key not in PADDED)
    if unknown:
        raise ConfigError(f"rows cannot be exchanged between ranks with {unknown[0]!r} (images); train on one process")
    parts = ranks.gather(rows)
    return {key: _joined(key, [part[key] for part in parts], pad_token) if key in PADDED else rows[key] for key in rows}


def _joined(key: str, parts: list[Tensor], pad_token: int) -> Tensor:
    width = max(part.shape[1] for part in parts)
    value = pad_token if key in ("prompt_ids", "completion_ids") else FILLED_WITH.get(key, 0)
    sides = [(width - part.shape[1], 0) if key in LEFT_PADDED else (0, width - part.shape[1]) for part in parts]
    return torch.cat([pad(part, side, value=value) for part, side in zip(parts, sides, strict=True)])


def take_rows(rows: Mapping[str, Any], index: Sequence[int]) -> Rows:
    """The rows at `index`, in that order."""

    def taken(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim():
            return value[torch.tensor(index, dtype=torch.long, device=value.device)]
        return [value[row] for row in index] if isinstance(value, list) else value

    return {key: taken(value) for key, value in rows.items()}


def trim(rows: Rows) -> Rows:
    """Drop the columns that are padding in every row; at least one column remains."""
    prompt = max(1, int(rows["prompt_mask"].sum(-1).max()))
    columns = torch.arange(1, rows["completion_mask"].shape[1] + 1, device=rows["completion_mask"].device)
    completion = max(1, int((columns * rows["completion_mask"]).max()))
    width = rows["completion_ids"].shape[1]

    def trimmed(key: str, value: Any) -> Any:
        if key not in PADDED or value is None:
            return value
        if key in LEFT_PADDED:
            return value[:, -prompt:]
        return value[:, :completion] if value.shape[1] == width else value

    return {key: trimmed(key, value) for key, value in rows.items()}


def _is_per_row(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0)


class PlannedBatch(NamedTuple):
    rows: Rows
    """The rows of all ranks."""
    credited: Credited
    plan: StepPlan
    cost: Sequence[int]
    """Tokens of each row, prompt included."""
    on_policy: bool
    """One optimizer step for this batch: the old log-probs are those of the pass that trains."""


def as_rollouts(joined: Rows, *, group_size: int, end_tokens: Sequence[int], own_prompts: bool) -> Rollouts:
    """TRL's rows as rollouts. TRL puts the responses of a prompt next to each other; this is checked unless prompts are `own_prompts`."""
    ids, present = joined["completion_ids"], joined["completion_mask"].bool()
    mask = present & joined["tool_mask"].bool() if joined.get("tool_mask") is not None else present
    prompts = tuple(tuple(row[inside].tolist()) for row, inside in zip(joined["prompt_ids"], joined["prompt_mask"].bool(), strict=True))
    group = torch.arange(len(ids), device=ids.device) // group_size
    if not own_prompts:
        for row, prompt in enumerate(prompts):
            if prompt != prompts[row - row % group_size]:
                raise GuardError(f"row {row} does not answer the prompt of its group; groups of {group_size} rows are not adjacent")
    last = (torch.arange(1, ids.shape[1] + 1, device=ids.device) * present).amax(-1)
    ends = torch.isin(ids.gather(1, (last - 1).clamp(min=0)[:, None])[:, 0], torch.tensor(list(end_tokens), device=ids.device))
    sampler = joined.get("sampling_per_token_logps")
    behavior = torch.zeros(ids.shape, device=ids.device) if sampler is None else sampler.float()
    return Rollouts(prompts=prompts, tokens=ids, mask=mask, group=group, behavior_logp=behavior, finished=ends & (last > 0))


def planned_micro_batches(
    batch: PlannedBatch, built: AggregatedObjective, ranks: ProcessGroup, *, accumulated: int, steps: int, seed: int, trimmed: bool
) -> list[Rows]:
    """`accumulated` micro-batches for each of `steps` optimizer steps; a plan may leave the last ones empty."""
    made: list[Rows] = []
    for number in range(steps):
        step = batch.plan.steps[number] if number < len(batch.plan.steps) else None
        rows = () if step is None else step.rows
        own = deal_micro_batches(rows, batch.cost, ranks=ranks.count, micro_batches=accumulated)[ranks.index]
        for index, taken in enumerate(own):
            name = -1 - (number * accumulated + index) * ranks.count - ranks.index
            made.append(_micro_batch(batch, step, taken, built, seed=step_seed(seed, number), trimmed=trimmed, filler=name))
    return made


def _micro_batch(
    batch: PlannedBatch,
    step: PlannedStep | None,
    rows: tuple[int, ...],
    built: AggregatedObjective,
    *,
    seed: int,
    trimmed: bool,
    filler: int,
) -> Rows:
    shown = take_rows(batch.rows, rows or (0,))
    shown = {key: value for key, value in shown.items() if key not in ("scored_logp", "entropy")}
    shown = trim(shown) if trimmed else shown
    index = torch.tensor(rows or (0,), device=batch.rows["completion_ids"].device)
    planned = step if step is not None and rows else PlannedStep(micro_batches=((0,),), denominator=1.0, prompts=1, tokens=0)
    made = gather_rows(batch.credited, planned, index, built, width=shown["completion_ids"].shape[1], seed=seed)
    made = made if rows else _without_weight(made, filler)
    ratio = shown.pop("importance_sampling_ratio", None)
    weight = made.weight if ratio is None else made.weight * ratio
    return {**shown, "tokencredit": made._replace(weight=weight), "on_policy": batch.on_policy}


def _without_weight(made: MicroBatch, name: int) -> MicroBatch:
    """A row with weight 0, for an empty micro-batch: every rank must run a pass."""
    inputs = made.inputs
    name_of_row = torch.full_like(inputs.group, name)
    return made._replace(
        inputs=inputs._replace(mask=torch.zeros_like(inputs.mask), row=name_of_row, group=name_of_row),
        weight=torch.zeros_like(made.weight),
    )

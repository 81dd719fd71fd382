"""Which tokens meet in one optimizer step. `PLANNERS` is the table: name -> how rows are dealt to steps."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from tokencredit.batching.denominator import step_denominator
from tokencredit.batching.micro import cut_micro_batches
from tokencredit.batching.query_preserved import split_by_query
from tokencredit.batching.shuffled import split_shuffled
from tokencredit.types import Aggregation, PlannedStep, StepPlan

PLANNERS: dict[str, Callable[..., list[list[int]]]] = {"shuffled": split_shuffled, "query-preserved": split_by_query}


def _integers(name: str, values: Sequence[int] | Tensor) -> list[int]:
    listed = values.tolist() if isinstance(values, Tensor) else list(values)
    for value in listed:
        if not float(value).is_integer():
            raise ValueError(f"{name} holds {value}; it must hold whole numbers")
    return [int(value) for value in listed]


def make_plan(
    lengths: Sequence[int] | Tensor,
    group: Sequence[int] | Tensor,
    *,
    kind: Literal["shuffled", "query-preserved"] = "shuffled",
    optimizer_steps: int,
    max_tokens: int,
    seed: int,
    aggregation: Aggregation = "token-mean",
    constant_length: int | None = None,
    cost: Sequence[int] | Tensor | None = None,
) -> StepPlan:
    """Deal rows to optimizer steps, cut each into micro-batches, fix each step's denominator. Pure; no clock, no global RNG.

    `lengths` are loss tokens per row (they make denominators), `cost` the tokens a row takes in a forward pass
    (prompt included; default `lengths`), and `max_tokens` bounds rows x longest cost in a micro-batch.
    """
    lengths, group = _integers("lengths", lengths), _integers("group", group)
    costs = lengths if cost is None else _integers("cost", cost)
    for name, values in (("group", group), ("cost", costs)):
        if len(values) != len(lengths):
            raise ValueError(f"lengths holds {len(lengths)} rows but {name} holds {len(values)}; they must be the same")
    for name, values in (("lengths", lengths), ("cost", costs)):
        if values and min(values) < 0:
            raise ValueError(f"{name} holds {min(values)}; it cannot be negative")
    if kind not in PLANNERS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(PLANNERS)}")
    if optimizer_steps < 1:
        raise ValueError(f"optimizer_steps is {optimizer_steps}; it must be at least 1")
    steps = [
        PlannedStep(
            micro_batches=cut_micro_batches(rows, costs, max_tokens=max_tokens),
            denominator=step_denominator([lengths[row] for row in rows], aggregation=aggregation, constant_length=constant_length),
            prompts=len({group[row] for row in rows}),
            tokens=sum(lengths[row] for row in rows),
        )
        for rows in PLANNERS[kind](group, optimizer_steps=optimizer_steps, seed=seed)
    ]
    return StepPlan(kind=kind, seed=seed, rows=len(lengths), steps=tuple(steps))


__all__ = ["PLANNERS", "make_plan", "step_denominator"]

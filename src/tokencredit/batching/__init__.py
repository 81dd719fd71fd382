"""Batching: which responses form one optimizer step. `PLANNERS` is the table: name -> how rows are assigned to steps."""

from collections.abc import Sequence
from math import isfinite
from typing import Literal

from torch import Tensor

from tokencredit.batching.deal import PlanInputs, Planner, plan_by_query, plan_shuffled, plan_stratified
from tokencredit.batching.microbatch import cut_micro_batches, step_denominator
from tokencredit.batching.reward_balanced import BalanceMass, BalanceMethod, plan_reward_balanced
from tokencredit.types import Aggregation, PlannedStep, StepPlan

PLANNERS: dict[str, Planner] = {
    "shuffled": plan_shuffled,
    "query-preserved": plan_by_query,
    "reward-balanced": plan_reward_balanced,
    "stratified": plan_stratified,
}
KNOBS = {"reward-balanced": ("method", "keep_queries", "mass")}
"""Keywords of `make_plan` that a planner reads beyond its inputs."""


def _integers(name: str, values: Sequence[int] | Tensor) -> list[int]:
    listed = values.tolist() if isinstance(values, Tensor) else list(values)
    for value in listed:
        if not float(value).is_integer():
            raise ValueError(f"{name} holds {value}; it must hold whole numbers")
    return [int(value) for value in listed]


def _finite(name: str, values: Sequence[float] | Tensor) -> list[float]:
    listed = [float(value) for value in (values.tolist() if isinstance(values, Tensor) else values)]
    for value in listed:
        if not isfinite(value):
            raise ValueError(f"{name} holds {value}; it must hold finite numbers")
    return listed


def make_plan(
    lengths: Sequence[int] | Tensor,
    group: Sequence[int] | Tensor,
    *,
    kind: Literal["shuffled", "query-preserved", "reward-balanced", "stratified"] = "shuffled",
    optimizer_steps: int,
    max_tokens: int,
    seed: int,
    aggregation: Aggregation = "token-mean",
    constant_length: int | None = None,
    cost: Sequence[int] | Tensor | None = None,
    advantage: Sequence[float] | Tensor | None = None,
    method: BalanceMethod = "assign",
    keep_queries: bool = True,
    mass: BalanceMass = "tokens",
    packed: bool = False,
) -> StepPlan:
    """Assign rows to optimizer steps, cut each step into micro-batches, and compute its denominator. Pure: no clock, no global RNG.

    `lengths` are the loss tokens of each row, from which denominators are computed; `cost` is a row's tokens in a forward pass
    (prompt included; default `lengths`). `max_tokens` bounds rows x longest cost in a micro-batch, or with `packed` the sum of costs.
    Only reward-balanced reads `advantage`, `method`, `keep_queries` and `mass`.
    """
    lengths, group = _integers("lengths", lengths), _integers("group", group)
    costs = lengths if cost is None else _integers("cost", cost)
    advantages = None if advantage is None else _finite("advantage", advantage)
    for name, values in (("group", group), ("cost", costs), ("advantage", advantages)):
        if values is not None and len(values) != len(lengths):
            raise ValueError(f"lengths holds {len(lengths)} rows but {name} holds {len(values)}; they must be the same")
    for name, values in (("lengths", lengths), ("cost", costs)):
        if values and min(values) < 0:
            raise ValueError(f"{name} holds {min(values)}; it cannot be negative")
    if kind not in PLANNERS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(PLANNERS)}")
    if optimizer_steps < 1:
        raise ValueError(f"optimizer_steps is {optimizer_steps}; it must be at least 1")
    inputs = PlanInputs(lengths, group, advantages, optimizer_steps, seed)
    given = {"method": method, "keep_queries": keep_queries, "mass": mass}
    knobs = {name: given[name] for name in KNOBS.get(kind, ())}
    steps = []
    for rows, scale in PLANNERS[kind](inputs, **knobs):
        micro_batches = cut_micro_batches(rows, costs, max_tokens=max_tokens, packed=packed)
        scale_of = None if scale is None else dict(zip(rows, scale, strict=True))
        steps.append(
            PlannedStep(
                micro_batches=micro_batches,
                denominator=step_denominator([lengths[row] for row in rows], aggregation=aggregation, constant_length=constant_length),
                prompts=len({group[row] for row in rows}),
                tokens=sum(lengths[row] for row in rows),
                credit_scale=None if scale_of is None else tuple(scale_of[row] for micro in micro_batches for row in micro),
            )
        )
    return StepPlan(kind=kind, seed=seed, rows=len(lengths), steps=tuple(steps))


__all__ = ["PLANNERS", "make_plan", "step_denominator"]

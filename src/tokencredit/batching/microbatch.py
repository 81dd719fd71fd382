"""Micro-batches of an optimizer step, its denominator, and the share of optimizer steps that split a group."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tokencredit.types import Aggregation


def cut_micro_batches(rows: Sequence[int], cost: Sequence[int], *, max_tokens: int, packed: bool = False) -> tuple[tuple[int, ...], ...]:
    """Cut rows into micro-batches, greedily by falling cost; one pads to its longest row, so rows x longest <= max_tokens.

    The longest rows come first, so that an out-of-memory error happens in the first micro-batch or never. `packed` rows are not
    padded: each goes into the first micro-batch with room for its cost.
    """
    ordered = sorted(rows, key=lambda row: (-cost[row], row))
    if ordered and cost[ordered[0]] > max_tokens:
        raise ValueError(f"max_tokens is {max_tokens} but response {ordered[0]} with its prompt takes {cost[ordered[0]]} tokens")
    if packed:
        return _first_fit(ordered, cost, max_tokens)
    batches: list[tuple[int, ...]] = []
    while ordered:
        fitting = max(1, max_tokens // max(1, cost[ordered[0]]))
        batches.append(tuple(ordered[:fitting]))
        ordered = ordered[fitting:]
    return tuple(batches)


def pass_tokens(rows: Sequence[int], cost: Sequence[int], *, packed: bool = False) -> int:
    """Tokens of one micro-batch in a forward pass, padding included."""
    return sum(cost[row] for row in rows) if packed else len(rows) * max((cost[row] for row in rows), default=0)


def _first_fit(ordered: Sequence[int], cost: Sequence[int], max_tokens: int) -> tuple[tuple[int, ...], ...]:
    batches: list[list[int]] = []
    left: list[int] = []
    for row in ordered:
        needed = max(1, cost[row])
        chosen = next((index for index, room in enumerate(left) if room >= needed), len(batches))
        if chosen == len(batches):
            batches.append([])
            left.append(max_tokens)
        batches[chosen].append(row)
        left[chosen] -= needed
    return tuple(tuple(batch) for batch in batches)


def step_denominator(lengths: Sequence[int], *, aggregation: Aggregation, constant_length: int | None = None) -> float:
    """Divisor of a step's summed loss: tokens (token-mean), responses (sequence-mean), or responses x a constant (constant, Dr.GRPO)."""
    if aggregation == "token-mean":
        return float(max(1, sum(lengths)))
    if aggregation == "sequence-mean":
        return float(max(1, len(lengths)))
    if aggregation == "constant":
        if constant_length is None or constant_length < 1:
            raise ValueError(f"constant_length is {constant_length}; aggregation 'constant' needs a whole number of at least 1")
        return float(max(1, len(lengths)) * constant_length)
    raise ValueError(f"aggregation is {aggregation!r}; it must be token-mean, sequence-mean or constant")


def splitting_share(steps: Iterable[Sequence[int]], group: Sequence[int] | Tensor) -> float:
    """Share of the optimizer steps (given as their rows) that hold some but not all rows of a group."""
    group_of = group.tolist() if isinstance(group, torch.Tensor) else list(group)
    groups_of = [{group_of[row] for row in rows} for rows in steps]
    steps_with: dict[int, int] = {}
    for groups in groups_of:
        for name in groups:
            steps_with[name] = steps_with.get(name, 0) + 1
    splitting = sum(any(steps_with[name] > 1 for name in groups) for groups in groups_of)
    return splitting / len(groups_of) if groups_of else 0.0

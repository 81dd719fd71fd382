"""Cut one optimizer step into micro-batches that fit a token budget, longest rows first.

What an optimizer step divides by, fixed when the step is planned.

Do the optimizer steps of a batch keep groups whole?
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tokencredit.types import Aggregation


def cut_micro_batches(rows: Sequence[int], cost: Sequence[int], *, max_tokens: int, packed: bool = False) -> tuple[tuple[int, ...], ...]:
    """Greedy over rows by falling cost; a micro-batch pads to its longest row, so rows x longest <= max_tokens.

    The longest comes first, so that running out of memory happens at once or not at all. `packed` rows are not padded: each goes
    into the first micro-batch that its own cost still fits into.
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
    """Tokens that one micro-batch takes, padding included."""
    return sum(cost[row] for row in rows) if packed else len(rows) * max((cost[row] for row in rows), default=0)


def _first_fit(ordered: Sequence[int], cost: Sequence[int], max_tokens: int) -> tuple[tuple[int, ...], ...]:
    batches: list[list[int]] = []
    left: list[int] = []
    for row in ordered:
        needed = max(1, cost[row])
        place = next((place for place, room in enumerate(left) if room >= needed), len(batches))
        if place == len(batches):
            batches.append([])
            left.append(max_tokens)
        batches[place].append(row)
        left[place] -= needed
    return tuple(tuple(batch) for batch in batches)


def step_denominator(lengths: Sequence[int], *, aggregation: Aggregation, constant_length: int | None = None) -> float:
    """Its tokens (token-mean), its responses (sequence-mean), or its responses x a constant length (constant, Dr.GRPO)."""
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
    """Share of the optimizer steps (rows of each) that hold a part of a group whose other part is in another step."""
    names = group.tolist() if isinstance(group, torch.Tensor) else list(group)
    groups_of = [{names[row] for row in rows} for rows in steps]
    met: dict[int, int] = {}
    for groups in groups_of:
        for name in groups:
            met[name] = met.get(name, 0) + 1
    splitting = sum(any(met[name] > 1 for name in groups) for groups in groups_of)
    return splitting / len(groups_of) if groups_of else 0.0

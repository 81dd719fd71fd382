"""Monte-Carlo value of a prefix: where to branch, and the chance of success there."""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.types import Rollouts


class BranchPoint(NamedTuple):
    """The prefix of response `row` that ends just before its token at `position`."""

    row: int
    position: int


def every_few_tokens(length: int, every: int) -> list[int]:
    """Positions 0 < t < length that are multiples of `every`."""
    return list(range(every, length, every))


def starts_in_tokens(starts: Sequence[int], pieces: Sequence[str]) -> list[int]:
    """Character offsets where steps begin -> the first token beginning there or later, the response's own start left out."""
    positions: list[int] = []
    at = 0
    wanted = sorted(starts)
    for position, piece in enumerate(pieces):
        passed = [start for start in wanted if start <= at]
        wanted = wanted[len(passed) :]
        if passed and position > 0:
            positions.append(position)
        at += len(piece)
    return positions


def within_budget(points: Sequence[BranchPoint], *, continuations: int, budget: int | None, seed: int) -> list[BranchPoint]:
    """All points, or as many as the budget pays for, drawn at random and kept in order."""
    affordable = len(points) if budget is None else min(len(points), budget // continuations)
    return sorted(Random(seed).sample(list(points), affordable))


def prefix_values(
    rollouts: Rollouts, points: Sequence[BranchPoint], value_of: Callable[[Sequence[BranchPoint]], Float[Tensor, " point"]]
) -> Float[Tensor, "seq tok"]:
    """Chance of success before each token, NaN where no branch was made."""
    values = torch.full(rollouts.mask.shape, torch.nan, dtype=torch.float64, device=rollouts.mask.device)
    if points:
        rows, positions = (torch.tensor(column, device=values.device) for column in zip(*points, strict=True))
        values[rows, positions] = value_of(points).to(values)
    return values

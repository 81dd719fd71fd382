"""Columns gathered over the micro-batches of an optimizer step, put into one order whatever the cut."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from tokencredit.objective.base import TokenInputs

Columns = TypeVar("Columns", bound=tuple[Tensor, ...])


def row_names(inputs: TokenInputs) -> Int[Tensor, " seq"]:
    """The names of the responses, or a refusal: without them a statistic cannot be looked up again."""
    if inputs.row is None:
        raise ValueError("row is missing; an objective that looks at a whole optimizer step needs the responses' names")
    return inputs.row


def whole_step(parts: Sequence[Columns]) -> Columns:
    """The parts joined and sorted by their first column, the names, so that sums and ties come out the same for every cut."""
    joined = [torch.cat(column) for column in zip(*parts, strict=True)]
    order = joined[0].argsort()
    columns = type(parts[0])(*(column[order] for column in joined))
    if bool((columns[0].diff() == 0).any()):
        raise ValueError("row names two responses of one optimizer step alike; every response needs a name of its own")
    return columns

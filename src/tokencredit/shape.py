"""What is added to the verifier's score before responses are compared. `SHAPES` is the table: name -> method."""

import torch
from torch import Tensor

from tokencredit.kl_penalty import kl_penalty
from tokencredit.overlong import overlong_penalty
from tokencredit.repair_bonus import repair_bonus
from tokencredit.stage import ShapeInputs, ShapeMethod


def _none(inputs: ShapeInputs) -> Tensor:
    return torch.zeros_like(inputs.score, dtype=torch.float64)


def _overlong(inputs: ShapeInputs, *, buffer: float, factor: float) -> Tensor:
    return overlong_penalty(inputs.length, max_length=inputs.max_length, buffer=buffer, factor=factor)


def _ibpo(inputs: ShapeInputs, *, weight: float, repair_value: float, correct_above: float) -> Tensor:
    if inputs.repaired is None:
        raise ValueError("repaired is missing; IBPO's bonus needs revisions of the failed responses")
    return repair_bonus(inputs.score, inputs.repaired, weight=weight, repair_value=repair_value, correct_above=correct_above)


SHAPES: dict[str, ShapeMethod] = {
    "none": ShapeMethod(_none),
    "overlong": ShapeMethod(_overlong),
    "ibpo": ShapeMethod(_ibpo, needs=frozenset({"revisions"})),
}

__all__ = ["SHAPES", "ShapeInputs", "ShapeMethod", "kl_penalty", "overlong_penalty", "repair_bonus"]

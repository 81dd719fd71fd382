"""Reward shaping: terms added to the verifier's score before responses are compared. `SHAPES` is the table: name -> function."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.types import Evidence


class ShapeInputs(NamedTuple):
    """One batch of responses with the evidence that a method may use."""

    score: Float[Tensor, " seq"]
    length: Int[Tensor, " seq"]
    max_length: int
    """Length limit of a response."""
    repaired: Float[Tensor, " seq"] | None = None
    """Share of the references (siblings shown to the policy) with which its revision was right; 0 if none was tried."""


class ShapeMethod(NamedTuple):
    """A configured shaping: `adjust(inputs)` is added to the score; `needs` is the evidence that its config class declares."""

    adjust: Callable[..., Tensor]
    needs: frozenset[Evidence] = frozenset()


def overlong_penalty(length: Int[Tensor, " seq"], *, max_length: int, buffer: float = 0.2, factor: float = 1.0) -> Float[Tensor, " seq"]:
    """DAPO's soft overlong penalty (2503.14476): min(0, -factor (T - (L - b)) / b), b = buffer x L.

    0 up to length L - b, then falling linearly to -factor at the limit L and further beyond it. `buffer` is a share of the limit;
    the authors' 4096 of 20480 tokens is 0.2.
    """
    if not 0 < buffer <= 1:
        raise ValueError(f"buffer is {buffer}; it must be a share of max_length above 0 and at most 1")
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}; it must be at least 1")
    width = buffer * max_length
    return -factor * (length.double() - (max_length - width)).clamp(min=0) / width


def repair_bonus(
    score: Float[Tensor, " seq"],
    repaired: Float[Tensor, " seq"],
    *,
    weight: float = 0.6,
    repair_value: float = 0.5,
    correct_above: float = 0.5,
) -> Float[Tensor, " seq"]:
    """IBPO (2605.16302): weight x repair_value x (share of references whose revision is right) for failures, 0 for successes.

    A failure that the policy can repair after seeing a sibling is worth more than one it cannot. An ungraded response (NaN score)
    gets 0.
    """
    if bool(((repaired < 0) | (repaired > 1) | repaired.isnan()).any()):
        raise ValueError("repaired must be a share of references between 0 and 1")
    return torch.where(score <= correct_above, weight * repair_value * repaired.double(), torch.zeros_like(repaired.double()))


def kl_penalty(divergence: Float[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"], *, beta: float) -> Float[Tensor, " seq"]:
    """KL in the reward: -beta x the sum of a response's per-token KL estimates from a frozen reference at sampling time; no gradient."""
    return -beta * divergence.detach().where(mask, 0.0).sum(-1)


def _none(inputs: ShapeInputs) -> Tensor:
    return torch.zeros_like(inputs.score, dtype=torch.float64)


def _overlong(inputs: ShapeInputs, *, buffer: float, factor: float) -> Tensor:
    return overlong_penalty(inputs.length, max_length=inputs.max_length, buffer=buffer, factor=factor)


def _ibpo(inputs: ShapeInputs, *, weight: float, repair_value: float, correct_above: float) -> Tensor:
    if inputs.repaired is None:
        raise ValueError("repaired is missing; IBPO's bonus needs revisions of the failed responses")
    return repair_bonus(inputs.score, inputs.repaired, weight=weight, repair_value=repair_value, correct_above=correct_above)


SHAPES: dict[str, Callable[..., Tensor]] = {"none": _none, "overlong": _overlong, "ibpo": _ibpo}

__all__ = ["SHAPES", "ShapeInputs", "ShapeMethod", "kl_penalty", "overlong_penalty", "repair_bonus"]

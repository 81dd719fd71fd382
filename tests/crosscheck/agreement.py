"""When two implementations are the same one: numbers to 1e-6, gradients to 1e-6 of their largest entry."""

from typing import NamedTuple

from torch import Tensor

BOUND = 1e-6
LARGEST: dict[str, float] = {}
"""Comparison -> largest difference so far; the run prints it when it ends."""


class Loss(NamedTuple):
    value: Tensor
    gradient: Tensor
    """By every log-prob."""


def difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape, f"ours is {tuple(ours.shape)}, theirs {tuple(theirs.shape)}"
    assert ours.isfinite().all()
    assert theirs.isfinite().all()
    return float((ours.double() - theirs.double()).abs().max())


def gradient_difference(ours: Loss, theirs: Loss) -> float:
    """Relative to the largest entry of theirs."""
    largest = float(theirs.gradient.abs().max())
    assert largest > 0, "a loss without gradient compares nothing"
    return difference(ours.gradient, theirs.gradient) / largest


def loss_difference(ours: Loss, theirs: Loss) -> float:
    """The larger of the two, of values and of gradients."""
    return max(difference(ours.value, theirs.value), gradient_difference(ours, theirs))


def _note(name: str, found: float) -> None:
    LARGEST[name] = max(found, LARGEST.get(name, 0.0))
    assert found <= BOUND, f"{name}: {found:.2e} apart"


def agree(name: str, ours: Tensor, theirs: Tensor) -> None:
    _note(name, difference(ours, theirs))


def losses_agree(name: str, ours: Loss, theirs: Loss) -> None:
    _note(name, loss_difference(ours, theirs))


def gradients_agree(name: str, ours: Loss, theirs: Loss) -> None:
    """For surrogates that have the same gradient and other values."""
    _note(name, gradient_difference(ours, theirs))

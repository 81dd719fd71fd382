"""The form every planner takes: what is known of rows in, the rows of each optimizer step out."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class PlanInputs(NamedTuple):
    lengths: Sequence[int]
    """Loss tokens of each row."""
    group: Sequence[int]
    advantage: Sequence[float] | None
    """One per row; its sign says which side a row is on, 0 that it is on none."""
    optimizer_steps: int
    seed: int


class DealtStep(NamedTuple):
    rows: list[int]
    credit_scale: list[float] | None = None
    """Factor on the credit of each row; None where all are 1."""


Planner = Callable[..., list[DealtStep]]
"""`(inputs, **knobs) -> list[DealtStep]`"""

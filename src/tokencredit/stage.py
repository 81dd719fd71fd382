"""The form every shaping takes: what is known of responses in, what is added to their scores out."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.types import Evidence


class ShapeInputs(NamedTuple):
    score: Float[Tensor, " seq"]
    length: Int[Tensor, " seq"]
    max_length: int
    """Length limit of a response."""
    repaired: Float[Tensor, " seq"] | None = None
    """Share of a response's references with which the policy repaired it; 0 where none was tried."""


class ShapeMethod(NamedTuple):
    """`adjust(inputs, **knobs)` is added to the score; `needs` is what must be sampled for it."""

    adjust: Callable[..., Tensor]
    needs: frozenset[Evidence] = frozenset()

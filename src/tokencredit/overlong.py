"""DAPO's soft overlong penalty: a reward that falls linearly as a response nears the length limit (2503.14476)."""

from jaxtyping import Float, Int
from torch import Tensor


def overlong_penalty(length: Int[Tensor, " seq"], *, max_length: int, buffer: float = 0.2, factor: float = 1.0) -> Float[Tensor, " seq"]:
    """min(0, -factor (T - (L - b)) / b) with b = buffer x L: 0 up to L - b, -factor at the limit L.

    `buffer` is a share of the limit; the authors' 4096 of 20480 tokens is 0.2. Lengths beyond L keep falling.
    """
    if not 0 < buffer <= 1:
        raise ValueError(f"buffer is {buffer}; it must be a share of max_length above 0 and at most 1")
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}; it must be at least 1")
    width = buffer * max_length
    return -factor * (length.double() - (max_length - width)).clamp(min=0) / width

"""Stochastic rounding to bfloat16: up or down by chance, so that the expectation is the value itself."""

import torch
from jaxtyping import Float
from torch import Tensor

LOW_BITS = 16
"""What a bfloat16 lacks of a float32: the lower half of its bits."""


def stochastic_round(value: Float[Tensor, "..."], generator: torch.Generator) -> Float[Tensor, "..."]:
    """float32 to one of its two bfloat16 neighbours, the upper one with probability (value - lower) / (upper - lower).

    Floats of one sign are ordered as their bits are, so a random number below 2^16 added to the bits carries into the upper half
    with just that probability; then the lower half is cut off. A value that is a bfloat16 stays, and so does what is not finite.
    Beyond the largest bfloat16 the upper neighbour is infinity, as in rounding to nearest.
    """
    if value.dtype != torch.float32:
        raise ValueError(f"value is {value.dtype}; stochastic rounding takes float32")
    chance = torch.randint(0, 2**LOW_BITS, value.shape, dtype=torch.int32, device=value.device, generator=generator)
    upper_half = (value.contiguous().view(torch.int32) + chance) >> LOW_BITS
    # The bits of a number that is not finite are no place on a line: added to, a NaN could become one.
    return upper_half.to(torch.int16).view(torch.bfloat16).where(value.isfinite(), value.bfloat16())

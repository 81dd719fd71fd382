"""Random numbers by counting: what a row draws at a position is a function of the seed, the row and the position alone."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF


class TwoUniforms(NamedTuple):
    """In [0, 1), multiples of 2⁻²⁴: one to choose a block of the vocabulary, one to choose in it."""

    block: Float[Tensor, "..."]
    token: Float[Tensor, "..."]


def _wide_product(factor: int, value: Int[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Upper and lower half of a 64-bit product of two 32-bit numbers, with signed 64-bit integers."""
    low_part, high_part = factor * (value & 0xFFFF), factor * (value >> 16)
    middle = high_part + (low_part >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low_part & 0xFFFF)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al., 2011) over 32-bit numbers held in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _wide_product(MULTIPLIERS[0], c0)
        high1, low1 = _wide_product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def uniforms(seed: Int[Tensor, " one"], row: Int[Tensor, "..."], position: Int[Tensor, "..."]) -> TwoUniforms:
    row, position = row.long() & LOW, position.long() & LOW
    nothing = torch.zeros_like(row)
    block, token, _, _ = philox((position, row, nothing, nothing), (seed & LOW, (seed >> 32) & LOW))
    return TwoUniforms(*((bits >> 8).float() * 2.0**-24 for bits in (block, token)))

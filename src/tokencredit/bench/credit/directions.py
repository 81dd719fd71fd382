"""Which of many per-token numbers point the same way: what is alike needs only one backward pass."""

from collections.abc import Mapping

import torch
from torch import Tensor

TOLERANCE = 1e-5
"""Of the longest entry, after scaling to length 1."""


def unit(value: Tensor) -> Tensor:
    """Scaled to length 1 in float64; zeros stay zeros."""
    value = value.double()
    return value / value.norm().clamp(min=torch.finfo(torch.float64).tiny)


def alike(values: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> the first name whose values are a positive multiple of its own; its own name where there is none before it."""
    first: dict[str, Tensor] = {}
    found: dict[str, str] = {}
    for name, value in values.items():
        own = unit(value)
        largest = float(own.abs().max()) if own.numel() else 0.0
        same = (other for other, known in first.items() if float((known - own).abs().max()) <= TOLERANCE * max(largest, 1e-300))
        found[name] = next(same, name)
        if found[name] == name:
            first[name] = own
    return found


def together(found: list[dict[str, str]]) -> dict[str, str]:
    """Alike in every one of several batches."""
    names = list(found[0])
    agreed: dict[str, str] = {}
    for name in names:
        seen = [one[name] for one in found]
        agreed[name] = next((other for other in agreed if agreed[other] == other and [one[other] for one in found] == seen), name)
    return agreed

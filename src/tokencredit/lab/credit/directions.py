"""Which of many per-token numbers point the same way: what is alike needs only one backward pass."""

from collections.abc import Mapping, Sequence

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


def together(found: Sequence[Mapping[str, str]], sizes: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Alike in every one of several batches, by the same factor: only then are their means over batches alike too."""
    agreed: dict[str, str] = {}
    for name in found[0]:
        seen = [one[name] for one in found]
        leaders = (other for other in agreed if agreed[other] == other and [one[other] for one in found] == seen)
        agreed[name] = next((other for other in leaders if _same_ratio(name, other, sizes)), name)
    return agreed


def _same_ratio(name: str, other: str, sizes: Sequence[Mapping[str, float]]) -> bool:
    ratios = [one[name] / one[other] for one in sizes if one[other] > 0]
    return not ratios or max(ratios) - min(ratios) <= 2 * TOLERANCE * max(ratios)


def stretched(gradient: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """The gradient of `own`, from that of `other`, which it is a positive multiple of."""
    size = float(other.double().norm())
    return gradient if own is other or not size else gradient * (float(own.double().norm()) / size)

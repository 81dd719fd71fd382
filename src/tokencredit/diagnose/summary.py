"""How findings count: shares and means over chosen tokens, confidence buckets, tables by a label."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CONFIDENCE_EDGES = (0.5, 0.9, 0.99)
"""Bucket borders of a token's probability before the update; low confidence is where coupling is expected."""

DEAD_BAND = 1e-4
"""Nats of log-prob: a token that moved by no more has hardly moved."""

SIDES = {"positive": 1, "negative": -1}


def confidence_names() -> tuple[str, ...]:
    edges = CONFIDENCE_EDGES
    between = [f"{low}–{high}" for low, high in pairwise(edges)]
    return (f"p < {edges[0]}", *(f"p {name}" for name in between), f"p ≥ {edges[-1]}")


def confidence_bucket(probability: Float[Tensor, " tok"]) -> Int[Tensor, " tok"]:
    """Index into `confidence_names`; a border belongs to the bucket above it."""
    return torch.bucketize(probability.double(), probability.new_tensor(CONFIDENCE_EDGES, dtype=torch.float64), right=True)


def mean_where(value: Tensor, chosen: Bool[Tensor, " tok"]) -> float:
    """Mean over the chosen tokens in float64, NaN where none is chosen. Of a bool it is a share."""
    return float(value[chosen].double().mean()) if bool(chosen.any()) else float("nan")


def label_masks(labels: Sequence[str]) -> dict[str, Bool[Tensor, " tok"]]:
    """Which tokens carry each label, labels in order of appearance."""
    return {name: torch.tensor([label == name for label in labels]) for name in dict.fromkeys(labels)}


def correlation(left: Float[Tensor, " tok"], right: Float[Tensor, " tok"]) -> float:
    """Pearson's, in float64; NaN for fewer than two tokens or a side that does not vary."""
    if len(left) < 2:
        return float("nan")
    left, right = (value.double() - value.double().mean() for value in (left, right))
    size = left.norm() * right.norm()
    return float(left @ right / size) if float(size) > 0 else float("nan")

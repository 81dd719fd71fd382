"""Helpers of the diagnoses: evidence per token (float64, NaN if not measured), means, confidence buckets, numbers in sentences."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.diagnose.table import TokenTable

CONFIDENCE_EDGES = (0.5, 0.9, 0.99)
"""Bucket borders of a token's probability before the update; low confidence is where coupling is expected."""

DEAD_BAND = 1e-4
"""Nats of log-prob; a smaller change counts as no change."""

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
    """The tokens with each label, labels in order of appearance."""
    return {name: torch.tensor([label == name for label in labels]) for name in dict.fromkeys(labels)}


def correlation(left: Float[Tensor, " tok"], right: Float[Tensor, " tok"]) -> float:
    """Pearson's correlation in float64; NaN for fewer than two tokens or a constant argument."""
    if len(left) < 2:
        return float("nan")
    left, right = (value.double() - value.double().mean() for value in (left, right))
    size = left.norm() * right.norm()
    return float(left @ right / size) if float(size) > 0 else float("nan")


def on_cpu(table: TokenTable) -> TokenTable:
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    return replace(table, **{name: column.cpu() for name, column in columns.items() if isinstance(column, Tensor)})


def evidence(table: TokenTable, name: str, value: Float[Tensor, " any"]) -> Float[Tensor, " tok"]:
    """The values in float64 on the table's device; an error unless there is one per token."""
    if value.shape != (len(table),):
        raise ValueError(f"{name} is {tuple(value.shape)} but the table holds {len(table)} tokens; give one entry per token")
    return value.detach().to("cpu", torch.float64)


def confidence_parts(table: TokenTable) -> dict[str, Bool[Tensor, " tok"]]:
    """The tokens in each bucket of probability before the update; empty buckets are omitted."""
    bucket = confidence_bucket(table.probability)
    parts = {name: bucket == number for number, name in enumerate(confidence_names())}
    return {name: part for name, part in parts.items() if bool(part.any())}


def class_parts(table: TokenTable) -> dict[str, Bool[Tensor, " tok"]]:
    return label_masks(table.token_class)


def percent(share: float) -> str:
    """Rounds halves up, as a browser does."""
    return "an unknown share" if math.isnan(share) else f"{100 * share + 1e-9:.1f} %"


def number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3g}"


def count(amount: int, noun: str) -> str:
    return f"{amount} {noun}{'' if amount == 1 else 's'}"

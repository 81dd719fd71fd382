"""Evidence beside a token table: one number per token in float64, NaN where it was not measured; and the parts tables are made by."""

from dataclasses import fields, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.diagnose.summary import confidence_bucket, confidence_names, label_masks
from tokencredit.diagnose.table import TokenTable


def on_cpu(table: TokenTable) -> TokenTable:
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    return replace(table, **{name: column.cpu() for name, column in columns.items() if isinstance(column, Tensor)})


def evidence(table: TokenTable, name: str, value: Float[Tensor, " any"]) -> Float[Tensor, " tok"]:
    """The values in float64 beside the table, refused where they are not one per token."""
    if value.shape != (len(table),):
        raise ValueError(f"{name} is {tuple(value.shape)} but the table holds {len(table)} tokens; give one entry per token")
    return value.detach().to("cpu", torch.float64)


def confidence_parts(table: TokenTable) -> dict[str, Bool[Tensor, " tok"]]:
    """Which tokens are in each bucket of probability before the update; empty buckets are left out."""
    bucket = confidence_bucket(table.probability)
    parts = {name: bucket == number for number, name in enumerate(confidence_names())}
    return {name: part for name, part in parts.items() if bool(part.any())}


def class_parts(table: TokenTable) -> dict[str, Bool[Tensor, " tok"]]:
    return label_masks(table.token_class)

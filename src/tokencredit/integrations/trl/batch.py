"""A batch of generations as TRL makes it, one dict of rows per rank, joined over ranks and taken apart by rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokencredit.errors import ConfigError
from tokencredit.pipeline.distributed import Ranks

LEFT_PADDED = frozenset({"prompt_ids", "prompt_mask"})
PADDED = LEFT_PADDED | {
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "scored_logp",
    "entropy",
}
FILLED_WITH = {"tool_mask": 1}
"""As TRL pads; everything else gets the padding token or 0."""

Rows = dict[str, Any]
"""Tensors and lists whose first axis is the row; numbers and None are the batch's."""


def join_ranks(rows: Rows, ranks: Ranks, *, pad_token: int) -> Rows:
    """The rows of all ranks in their order, padded to one width."""
    if ranks.count == 1:
        return rows
    unknown = sorted(key for key, value in rows.items() if _is_per_row(value) and key not in PADDED)
    if unknown:
        raise ConfigError(f"rows cannot be exchanged between ranks with {unknown[0]!r} (images); train on one process")
    parts = ranks.gather(rows)
    return {key: _joined(key, [part[key] for part in parts], pad_token) if key in PADDED else rows[key] for key in rows}


def _joined(key: str, parts: list[Tensor], pad_token: int) -> Tensor:
    width = max(part.shape[1] for part in parts)
    value = pad_token if key in ("prompt_ids", "completion_ids") else FILLED_WITH.get(key, 0)
    sides = [(width - part.shape[1], 0) if key in LEFT_PADDED else (0, width - part.shape[1]) for part in parts]
    return torch.cat([pad(part, side, value=value) for part, side in zip(parts, sides, strict=True)])


def take_rows(rows: Mapping[str, Any], index: Sequence[int]) -> Rows:
    """Some rows, in the order asked for."""

    def taken(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim():
            return value[torch.tensor(index, dtype=torch.long, device=value.device)]
        return [value[row] for row in index] if isinstance(value, list) else value

    return {key: taken(value) for key, value in rows.items()}


def trim(rows: Rows) -> Rows:
    """Without the columns that are padding in every row; a column is always left."""
    prompt = max(1, int(rows["prompt_mask"].sum(-1).max()))
    columns = torch.arange(1, rows["completion_mask"].shape[1] + 1, device=rows["completion_mask"].device)
    completion = max(1, int((columns * rows["completion_mask"]).max()))
    width = rows["completion_ids"].shape[1]

    def trimmed(key: str, value: Any) -> Any:
        if key not in PADDED or value is None:
            return value
        if key in LEFT_PADDED:
            return value[:, -prompt:]
        return value[:, :completion] if value.shape[1] == width else value

    return {key: trimmed(key, value) for key, value in rows.items()}


def _is_per_row(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0)

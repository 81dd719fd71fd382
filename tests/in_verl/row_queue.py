"""A TransferQueue in one process: what verl's trainer and ours put and get by key, kept in a dict."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta


def joined(rows: Sequence[Any]) -> Any:
    """One field of several rows: ragged tensors nested, numbers stacked, anything else as it is."""
    if not isinstance(rows[0], Tensor):
        return list(rows)
    return torch.stack(list(rows)) if rows[0].dim() == 0 else torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class Queue:
    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}

    def kv_batch_put(
        self, *, keys: Sequence[str], partition_id: str, fields: TensorDict, tags: Sequence[dict[str, Any]] = ()
    ) -> KVBatchMeta:
        for place, key in enumerate(keys):
            row = self.rows.setdefault(key, {})
            row.update({name: _row(fields.get(name), place) for name in fields.keys()})  # noqa: SIM118 (a TensorDict iterates over rows)
        self.tags.update(zip(keys, tags, strict=False))
        named = sorted(set.intersection(*(set(self.rows[key]) for key in keys)))
        return KVBatchMeta(keys=list(keys), tags=[self.tags[key] for key in keys], partition_id=partition_id, fields=named)

    def kv_batch_get(self, *, keys: Sequence[str], partition_id: str, select_fields: Sequence[str] | None = None) -> TensorDict:
        wanted = list(self.rows[keys[0]]) if select_fields is None else list(select_fields)
        # The real one leaves out what nobody has put, too.
        known = [name for name in wanted if all(name in self.rows[key] for key in keys)]
        return TensorDict({name: joined([self.rows[key][name] for key in keys]) for name in known}, batch_size=len(keys))

    def batch(self, keys: Sequence[str]) -> KVBatchMeta:
        return KVBatchMeta(keys=list(keys), tags=[self.tags[key] for key in keys], partition_id="train", fields=None)


def _row(value: Any, place: int) -> Any:
    return value.unbind()[place] if isinstance(value, Tensor) and value.is_nested else value[place]

"""What an offline run of wandb left on the disk: records in blocks of 32 KiB, each a message of its own format."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HEADER, BLOCK = 7, 32768
WHOLE, LAST = 1, 4


class OfflineRun(NamedTuple):
    id: str
    project: str
    name: str
    config: dict[str, Any]
    steps: list[tuple[int, dict[str, float]]]
    summary: dict[str, Any]
    logs: str
    exit_code: int | None


def _messages(data: bytes) -> Iterator[bytes]:
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        length, kind = (0, 0) if left < HEADER else struct.unpack("<HB", data[at + 4 : at + HEADER])
        if kind == 0:
            at += left
            continue
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (WHOLE, LAST):
            yield parts
            parts = b""


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_offline_runs(folder: Path) -> list[OfflineRun]:
    """In the order in which they were begun."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        records = [Record.FromString(message) for message in _messages(path.read_bytes())]
        run = next(record.run for record in records if record.HasField("run"))
        summary: dict[str, Any] = {}
        for record in records:
            summary |= _values(record.summary.update)
        rows = [(record.history.step.num, _values(record.history.item)) for record in records if record.HasField("history")]
        found.append(
            OfflineRun(
                id=run.run_id,
                project=run.project,
                name=run.display_name,
                config=_values(run.config.update),
                steps=[(step, {name: value for name, value in row.items() if not name.startswith("_")}) for step, row in rows],
                summary={name: value for name, value in summary.items() if not name.startswith("_")},
                logs="".join(record.output_logger.line for record in records if record.HasField("output_logger")),
                exit_code=next((record.exit.exit_code for record in records if record.HasField("exit")), None),
            )
        )
    return found

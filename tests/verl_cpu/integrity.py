"""Which rows took part in each optimizer step, as the training ranks saw it, and how often that cut a prompt group apart."""

import json
import os
from collections import defaultdict
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

RECORD = "TOKENCREDIT_MINI_BATCHES"
"""Environment variable: the folder to record into, one file per rank; without it nothing is recorded."""


class Integrity(NamedTuple):
    optimizer_steps: int
    splitting_steps: int
    """Optimizer steps with some, but not all, rows of a group."""
    groups: int
    split_groups: int

    @property
    def share(self) -> float:
        return self.splitting_steps / self.optimizer_steps


def record_mini_batches(engine_workers: ModuleType) -> None:
    """Make every training rank write a line per mini-batch: its number, and the `uid` and session of each row."""
    import torch.distributed

    worker = engine_workers.TrainingWorker
    stock = worker.train_batch
    folder = Path(os.environ[RECORD])
    number = 0

    @wraps(stock)
    def train_batch(self: Any, data: Any) -> Any:
        nonlocal number
        rows = [[str(uid), int(session)] for uid, session in zip(data["uid"], data["session_id"], strict=True)]
        with (folder / f"rank{torch.distributed.get_rank()}.jsonl").open("a") as file:
            file.write(json.dumps({"mini_batch": number, "rows": rows}) + "\n")
        number += 1
        return stock(self, data)

    worker.train_batch = train_batch


def read_mini_batches(folder: Path) -> list[set[tuple[str, int]]]:
    """The rows of each optimizer step over all ranks, without the rows verl adds to fill a batch up."""
    steps: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for file in sorted(folder.glob("rank*.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            steps[line["mini_batch"]] |= {(uid, session) for uid, session in line["rows"] if not uid.startswith("pad")}
    if not steps:
        raise ValueError(f"no mini-batch was recorded in {folder}")
    return [steps[number] for number in sorted(steps)]


def group_integrity(steps: list[set[tuple[str, int]]]) -> Integrity:
    """A group is split if an optimizer step has some of its rows but not all of them."""
    group: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for row in set().union(*steps):
        group[row[0]].add(row)
    split = [{uid for uid, _ in rows if not group[uid] <= rows} for rows in steps]
    return Integrity(
        optimizer_steps=len(steps),
        splitting_steps=sum(bool(uids) for uids in split),
        groups=len(group),
        split_groups=len(set().union(*split)),
    )

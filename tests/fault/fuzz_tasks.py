"""Damaged files of questions and gold answers."""

import json
from pathlib import Path
from random import Random

from fault.fuzz import Trial, damage_values, damaged, json_line
from tokencredit.tasks.jsonl import Columns, read_rows

ROWS = [{"question": f"How much is {left} + 7?", "answer": str(left + 7), "source": {"page": left}} for left in range(6)]
COLUMNS = Columns("question", "answer", "{question}\n", None)


def _reading(path: Path) -> Trial:
    def read() -> None:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
        for row in read_rows(path, "path", COLUMNS):
            cells = json.loads(lines[row.line - 1])
            assert row.prompt == f"{cells['question']}\n", "another question than in the file"
            assert row.gold == str(cells["answer"]).strip() or float(row.gold) == cells["answer"], "another answer than in the file"

    return Trial(read, (str(path),))


def task_bytes(rng: Random, place: Path) -> Trial:
    path = place / "task.jsonl"
    path.write_bytes(damaged(rng, b"".join(map(json_line, ROWS))))
    return _reading(path)


def task_values(rng: Random, place: Path) -> Trial:
    path = place / "task.jsonl"
    path.write_bytes(b"".join(map(json_line, damage_values(rng, ROWS))))
    return _reading(path)


KINDS = {"task data, bytes": task_bytes, "task data, values": task_values}

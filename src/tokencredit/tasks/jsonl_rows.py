"""Questions and gold answers of a file, and on which side each row is: trained on or held out."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError
from tokencredit.grade.text import last_match
from tokencredit.tasks.jsonl_file import Line, Numeral, read_objects, text_cell
from tokencredit.tasks.leaks import alike
from tokencredit.tasks.protocol import Split
from tokencredit.tasks.split import split_of


class Row(NamedTuple):
    line: int
    prompt: str
    gold: str
    written: str
    """The whole answer column, which may be a worked solution around the gold answer."""


class Columns(NamedTuple):
    """Where a row's parts stand."""

    question: str
    answer: str
    template: str
    gold_pattern: re.Pattern[str] | None


def read_rows(path: Path, field: str, columns: Columns) -> list[Row]:
    return distinct(path, [_row(line, cells, columns) for line, cells in read_objects(path, field)])


def _row(line: Line, cells: Mapping[str, Any], columns: Columns) -> Row:
    question = text_cell(line, cells, "question", columns.question)
    written = text_cell(line, cells, "answer", columns.answer)
    if isinstance(question, Numeral):
        raise line.wrong(f"{columns.question} is the number {shortened(question)}; give text")
    pattern = columns.gold_pattern
    gold = written if pattern is None else last_match(pattern, written)
    if pattern is not None and (gold is None or not gold.strip()):
        raise line.wrong(f"{columns.answer} is {shortened(written)}, in which task.gold_pattern {pattern.pattern!r} finds no gold answer")
    return Row(line.number, columns.template.replace("{question}", question), str(gold or "").strip(), str(written))


def distinct(path: Path, rows: list[Row]) -> list[Row]:
    """One per prompt: a row that repeats another is dropped, two that disagree on the answer are refused."""
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(row.prompt, row)
        if known.gold != row.gold:
            raise ConfigError(
                f"{path}, line {row.line}: the same question as on line {known.line}, but the answer is {shortened(row.gold)} and not "
                f"{shortened(known.gold)}; keep one of them"
            )
    return list(first.values())


def two_sides(read: Callable[[Path, str], list[Row]], path: Path, held_out_path: Path | None) -> dict[Split, list[Row]]:
    """`read(file, option)` each file; without one of held-out rows, a prompt's own text decides. A question on both sides is refused."""
    rows = read(path, "path")
    if held_out_path is None:
        return {split: [row for row in rows if split_of(row.prompt) == split] for split in ("train", "held-out")}
    held_out = read(held_out_path, "held_out_path")
    trained = {alike(row.prompt): row.line for row in rows}
    leaks = [(trained[alike(row.prompt)], row.line) for row in held_out if alike(row.prompt) in trained]
    if leaks:
        raise ConfigError(
            f"{len(leaks)} questions of task.held_out_path {held_out_path} are trained on: line {leaks[0][1]} stands in {path} on line "
            f"{leaks[0][0]} too; leave them out of one file"
        )
    return {"train": rows, "held-out": held_out}


def written_by_prompt(sides: Mapping[Split, list[Row]]) -> dict[str, str]:
    return {row.prompt: row.written for rows in sides.values() for row in rows}

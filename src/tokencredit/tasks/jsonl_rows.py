"""Questions and gold answers from a JSON-lines file: read right, or refused with file, line, field and what would be right."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.grade.text import last_match

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


class Numeral(str):
    """A number as the file writes it: 0.50 stays 0.50, and no integer is too long."""


class Line(NamedTuple):
    file: Path
    number: int

    def wrong(self, why: str) -> ConfigError:
        return ConfigError(f"{self.file}, line {self.number}: {why}")


_DECODER = json.JSONDecoder(parse_int=Numeral, parse_float=Numeral)


def read_rows(path: Path, field: str, columns: Columns) -> list[Row]:
    """One per prompt: a row that repeats another is dropped, two that disagree on the answer are refused. Empty lines are skipped."""
    if not path.is_file():
        raise ConfigError(f"task.{field} {_shortened(str(path))} is not a file; give a JSON-lines file")
    try:
        content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    except OSError as failure:
        raise ConfigError(f"task.{field} {path} cannot be read: {failure.strerror or failure}; give a JSON-lines file") from None
    # Never `splitlines`: a JSON string may hold other line ends than the newline.
    lines = [(Line(path, number), raw) for number, raw in enumerate(content.split(b"\n"), 1) if raw.strip()]
    if not lines:
        raise ConfigError(f"task.{field} {path} is empty; give one JSON object per line")
    return _distinct(path, [_row(line, _object(line, raw), columns) for line, raw in lines])


def _object(line: Line, raw: bytes) -> dict[str, Any]:
    try:
        cells = _DECODER.decode(raw.decode("utf-8").strip())
    except UnicodeDecodeError as failure:
        raise line.wrong(f"byte {raw[failure.start]:#04x} at place {failure.start + 1} is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise line.wrong("JSON nested too deeply; give one flat object per line") from None
    except ValueError as failure:
        raise line.wrong(f"not JSON ({failure}); give one object per line") from None
    if not isinstance(cells, dict):
        raise line.wrong(f'{_shortened(cells)} is not an object; give one like {{"question": ..., "answer": ...}}')
    return cells


def _row(line: Line, cells: Mapping[str, Any], columns: Columns) -> Row:
    question = _cell(line, cells, "question", columns.question)
    written = _cell(line, cells, "answer", columns.answer)
    if isinstance(question, Numeral):
        raise line.wrong(f"{columns.question} is the number {_shortened(question)}; give text")
    pattern = columns.gold_pattern
    gold = written if pattern is None else last_match(pattern, written)
    if pattern is not None and (gold is None or not gold.strip()):
        raise line.wrong(f"{columns.answer} is {_shortened(written)}, in which task.gold_pattern {pattern.pattern!r} finds no gold answer")
    return Row(line.number, columns.template.replace("{question}", question), str(gold or "").strip(), str(written))


def _cell(line: Line, cells: Mapping[str, Any], field: str, column: str) -> str:
    if column not in cells:
        held = ", ".join(sorted(cells)[:20]) or "nothing"
        raise line.wrong(f"no column {column!r}; it holds {held[:200]}. Set task.{field} to the column that is meant")
    value = cells[column]
    if not isinstance(value, str):
        raise line.wrong(f"{column} is {_shortened(value)}; give text{' or a finite number' if field == 'answer' else ''}")
    if not value.strip():
        raise line.wrong(f"{column} is empty; give text, or leave the line out")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise line.wrong(f"{column} is {ascii(value)[:60]}, half of a character pair stands alone in it; give whole characters")
    return value


def _distinct(path: Path, rows: list[Row]) -> list[Row]:
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(row.prompt, row)
        if known.gold != row.gold:
            raise ConfigError(
                f"{path}, line {row.line}: the same question as on line {known.line}, but the answer is {_shortened(row.gold)} and not "
                f"{_shortened(known.gold)}; keep one of them"
            )
    return list(first.values())


def _shortened(value: Any) -> str:
    try:
        text = ascii(value)
    except RecursionError:
        text = "..."
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Read a user's JSON-lines file. Every error names the file, the line, the field and what would be right."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError

GZIP = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Numeral(str):
    """A number as the file writes it: 0.50 stays 0.50, and integers may have any length."""


class Line(NamedTuple):
    """A line of a file, for error messages."""

    file: Path
    number: int

    def wrong(self, why: str) -> ConfigError:
        return ConfigError(f"{self.file}, line {self.number}: {why}")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {shortened(next(name for name in names if names.count(name) > 1))} occurs twice")
    return cells


_DECODER = json.JSONDecoder(parse_int=Numeral, parse_float=Numeral, object_pairs_hook=_no_key_twice)


def read_objects(path: Path, field: str) -> list[tuple[Line, dict[str, Any]]]:
    """The object of each line, with its position; empty lines are skipped. `field` is the task's field that named the file."""
    if not path.is_file():
        raise ConfigError(f"task.{field} {shortened(str(path))} is not a file; give a JSON-lines file")
    try:
        content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    except OSError as failure:
        raise ConfigError(f"task.{field} {path} cannot be read: {failure.strerror or failure}; give a JSON-lines file") from None
    if content.startswith(GZIP):
        raise ConfigError(f"task.{field} {path} is compressed with gzip; decompress it first")
    # Never `splitlines`: a JSON string may contain line ends other than the newline.
    lines = [(Line(path, number), raw) for number, raw in enumerate(content.split(b"\n"), 1) if raw.strip()]
    if not lines:
        raise ConfigError(f"task.{field} {path} is empty; give one JSON object per line")
    return [(line, _object(line, raw)) for line, raw in lines]


def _object(line: Line, raw: bytes) -> dict[str, Any]:
    try:
        cells = _DECODER.decode(raw.decode("utf-8").strip())
    except UnicodeDecodeError as failure:
        raise line.wrong(f"byte {failure.start + 1}, {raw[failure.start]:#04x}, is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise line.wrong("the JSON is nested too deeply; give one flat object per line") from None
    except ValueError as failure:
        raise line.wrong(f"the line is not JSON ({failure}); give one object per line") from None
    if isinstance(cells, list) and cells and isinstance(cells[0], dict):
        raise line.wrong("the line is one JSON list of objects; write each object on its own line")
    if not isinstance(cells, dict):
        raise line.wrong(f'{shortened(cells)} is not an object; give one like {{"question": ..., "answer": ...}}')
    return cells


def text_cell(line: Line, cells: Mapping[str, Any], field: str, column: str) -> str:
    """The non-empty text, or `Numeral`, in a column. `field` is the task's field that names the column."""
    if column not in cells:
        held = ", ".join(sorted(cells)[:20]) or "nothing"
        raise line.wrong(f"no column {column!r}; the line has {held[:200]}. Set task.{field} to the right column")
    value = cells[column]
    if not isinstance(value, str):
        raise line.wrong(f"{column} is {shortened(value)}; give text{' or a finite number' if field == 'answer' else ''}")
    if not value.strip():
        raise line.wrong(f"{column} is empty; give text, or remove the line")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise line.wrong(f"{column} is {ascii(value)[:60]}, which has an unpaired surrogate character; give valid Unicode text")
    return value

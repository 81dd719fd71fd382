"""A JSON-lines file that a user wrote: read right, or refused with file, line, field and what would be right."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError

GZIP = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Numeral(str):
    """A number as the file writes it: 0.50 stays 0.50, and no integer is too long."""


class Line(NamedTuple):
    file: Path
    number: int

    def wrong(self, why: str) -> ConfigError:
        return ConfigError(f"{self.file}, line {self.number}: {why}")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {shortened(next(name for name in names if names.count(name) > 1))} stands twice")
    return cells


_DECODER = json.JSONDecoder(parse_int=Numeral, parse_float=Numeral, object_pairs_hook=_no_key_twice)


def read_objects(path: Path, field: str) -> list[tuple[Line, dict[str, Any]]]:
    """Each line's object, with where it stands; empty lines are skipped. `field` is the task's option that named the file."""
    if not path.is_file():
        raise ConfigError(f"task.{field} {shortened(str(path))} is not a file; give a JSON-lines file")
    try:
        content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    except OSError as failure:
        raise ConfigError(f"task.{field} {path} cannot be read: {failure.strerror or failure}; give a JSON-lines file") from None
    if content.startswith(GZIP):
        raise ConfigError(f"task.{field} {path} is packed with gzip; unpack it first")
    # Never `splitlines`: a JSON string may hold other line ends than the newline.
    lines = [(Line(path, number), raw) for number, raw in enumerate(content.split(b"\n"), 1) if raw.strip()]
    if not lines:
        raise ConfigError(f"task.{field} {path} is empty; give one JSON object per line")
    return [(line, _object(line, raw)) for line, raw in lines]


def _object(line: Line, raw: bytes) -> dict[str, Any]:
    try:
        cells = _DECODER.decode(raw.decode("utf-8").strip())
    except UnicodeDecodeError as failure:
        raise line.wrong(f"byte {raw[failure.start]:#04x} at place {failure.start + 1} is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise line.wrong("JSON nested too deeply; give one flat object per line") from None
    except ValueError as failure:
        raise line.wrong(f"not JSON ({failure}); give one object per line") from None
    if isinstance(cells, list) and cells and isinstance(cells[0], dict):
        raise line.wrong("the line is one JSON list of objects; write each object on a line of its own")
    if not isinstance(cells, dict):
        raise line.wrong(f'{shortened(cells)} is not an object; give one like {{"question": ..., "answer": ...}}')
    return cells


def text_cell(line: Line, cells: Mapping[str, Any], field: str, column: str) -> str:
    if column not in cells:
        held = ", ".join(sorted(cells)[:20]) or "nothing"
        raise line.wrong(f"no column {column!r}; it holds {held[:200]}. Set task.{field} to the column that is meant")
    value = cells[column]
    if not isinstance(value, str):
        raise line.wrong(f"{column} is {shortened(value)}; give text{' or a finite number' if field == 'answer' else ''}")
    if not value.strip():
        raise line.wrong(f"{column} is empty; give text, or leave the line out")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise line.wrong(f"{column} is {ascii(value)[:60]}, half of a character pair stands alone in it; give whole characters")
    return value

"""Rows of a Parquet file or of JSON lines, as they are, of one step or of all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.rollout_file.cells import Place, is_missing, shortened, whole_number

PARQUET_MARK = b"PAR1"
STEPS_NAMED = 12


class Loaded(NamedTuple):
    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    places: list[Place]
    """Where each row stands in the file."""
    step: int | None
    """The step that was chosen, or the only one; None where the file knows no steps or all were asked for."""


def load(path: Path, *, step: int | Literal["all"] | None = None) -> Loaded:
    """A file that holds several steps needs one named, or "all"."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(PARQUET_MARK))
    except OSError as problem:
        raise ConfigError(f"rollout file {path} cannot be read: {problem.strerror or problem}") from None
    if not begins:
        raise ConfigError(f"rollout file {path} is empty")
    loaded = _load_parquet(path, step) if begins == PARQUET_MARK else _load_lines(path, step)
    if not loaded.rows:
        raise ConfigError(f"rollout file {path} holds no responses")
    return loaded


def _load_parquet(path: Path, step: int | Literal["all"] | None) -> Loaded:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        columns = tuple(file.schema_arrow.names)
        steps = file.read(columns=["step"]).column("step").to_pylist() if "step" in columns else None
        table = file.read()
    except (OSError, pyarrow.ArrowException) as problem:
        raise ConfigError(f"rollout file {path} cannot be read as Parquet: {problem}") from None
    chosen = _choose_step(path, steps, range(1, table.num_rows + 1), step)
    kept = chosen.kept if len(chosen.kept) < table.num_rows else None
    rows = (table if kept is None else table.take(kept)).to_pylist()
    return Loaded(path, columns, rows, [Place(path, index + 1) for index in chosen.kept], chosen.step)


def _load_lines(path: Path, step: int | Literal["all"] | None) -> Loaded:
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_line(path, number, line))
                    numbers.append(number)
    except UnicodeDecodeError:
        raise ConfigError(f"rollout file {path} is neither Parquet nor JSON lines in UTF-8") from None
    columns = tuple(dict.fromkeys(column for row in rows for column in row))
    steps = [row.get("step") for row in rows] if "step" in columns else None
    chosen = _choose_step(path, steps, numbers, step)
    return Loaded(
        path, columns, [rows[index] for index in chosen.kept], [Place(path, numbers[index]) for index in chosen.kept], chosen.step
    )


def _line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as problem:
        if number == 1:
            raise ConfigError(f"rollout file {path} is neither Parquet nor JSON lines: line 1 is {shortened(line.strip())}") from None
        raise ConfigError(f"{path}, row {number}: not JSON ({problem})") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}, row {number}: {shortened(row)} is no JSON object; give one object per line, {{column: value}}")
    return row


class _Chosen(NamedTuple):
    step: int | None
    kept: list[int]


def _choose_step(path: Path, steps: list[Any] | None, numbers: Sequence[int], asked: int | Literal["all"] | None) -> _Chosen:
    if steps is None or all(is_missing(value) for value in steps):
        if isinstance(asked, int):
            raise ConfigError(f"step is {asked} but {path} has no steps; leave it out")
        return _Chosen(None, list(range(len(numbers))))
    whole = [whole_number(value) for value in steps]
    for number, value, found in zip(numbers, steps, whole, strict=True):
        if found is None:
            raise Place(path, number).wrong(f"step is {shortened(value)}; give a whole number")
    present = sorted({value for value in whole if value is not None})
    if asked is None and len(present) > 1:
        raise ConfigError(f"{path} holds {len(present)} steps; choose one with --step: {_listed(present)}")
    if isinstance(asked, int) and asked not in present:
        raise ConfigError(f"step {asked} is not in {path}; it holds {_listed(present)}")
    if asked == "all":
        return _Chosen(None, list(range(len(numbers))))
    step = present[0] if asked is None else asked
    return _Chosen(step, [index for index, value in enumerate(whole) if value == step])


def _listed(steps: list[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:STEPS_NAMED])
    return shown if len(steps) <= STEPS_NAMED else f"{shown}, ... {steps[-1]}"

"""Rows of a Parquet file or of JSON lines, as they are, of one step or of all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokencredit.config.messages import first_line
from tokencredit.errors import ConfigError
from tokencredit.rollout_io.schema import Place, is_missing, listed, shortened, whole_number

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
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
    except (OSError, ValueError, pyarrow.ArrowException) as problem:
        raise ConfigError(f"rollout file {path} cannot be read as Parquet: {first_line(problem)}") from None
    columns = tuple(table.column_names)
    if twice := sorted({column for column in columns if columns.count(column) > 1}):
        raise ConfigError(f"rollout file {path} has two columns called {listed(twice)}; keep one of them")
    steps = _cells_of(path, "step", table.column("step")) if "step" in columns else None
    chosen = _choose_step(path, steps, range(1, table.num_rows + 1), step)
    kept = table if len(chosen.kept) == table.num_rows else table.take(chosen.kept)
    cells = [_cells_of(path, column, kept.column(column)) for column in columns]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*cells, strict=True)]
    return Loaded(path, columns, rows, [Place(path, index + 1) for index in chosen.kept], chosen.step)


def _cells_of(path: Path, name: str, cells: Any) -> list[Any]:
    """Cells that python has no value for (nanoseconds, years beyond 9999, text that is not UTF-8) raise whatever they like."""
    try:
        return cells.to_pylist()
    except Exception as problem:
        said = f"column {listed([name])} of type {str(cells.type)[:60]} cannot be read ({first_line(problem)}); leave it out"
        raise ConfigError(f"rollout file {path}: {said}") from None


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
    place = Place(path, number)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise place.wrong(f"{listed(sorted({name for name in names if names.count(name) > 1}))} is given twice; keep one of them")
        return found

    try:
        row = json.loads(line, object_pairs_hook=once)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as problem:
        if number == 1:
            raise ConfigError(f"rollout file {path} is neither Parquet nor JSON lines: line 1 is {shortened(line.strip())}") from None
        raise place.wrong(f"not JSON ({first_line(problem)})") from None
    if not isinstance(row, dict):
        raise place.wrong(f"{shortened(row)} is no JSON object; give one object per line, {{column: value}}")
    if "\\u" in line:
        _check_characters(place, row)
    return row


def _check_characters(place: Place, row: dict[str, Any]) -> None:
    """JSON can spell half of a character pair, which no file could be written with."""
    for column, value in row.items():
        try:
            json.dumps([column, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            said = f"{listed([column])} is {ascii(value)[:60]}"
            raise place.wrong(f"{said}, half of a character pair stands alone in it; give whole characters") from None
        except RecursionError:
            raise place.wrong(f"{listed([column])} is {shortened(value)}; lists in lists cannot be that deep") from None


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

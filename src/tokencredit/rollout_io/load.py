"""Load the rows of a Parquet or JSON-lines file unchanged, of one step or of all steps."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokencredit.config.messages import first_line
from tokencredit.errors import ConfigError
from tokencredit.rollout_io.schema import RowLocation, is_missing, list_names, shortened, whole_number

PARQUET_MARK = b"PAR1"
STEPS_NAMED = 12


class Loaded(NamedTuple):
    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    locations: list[RowLocation]
    """The location of each row in the file."""
    step: int | None
    """The requested step, or the only one; None where the file has no steps or all were requested."""


def load(path: Path, *, step: int | Literal["all"] | None = None) -> Loaded:
    """Load the rows of one step. Where a file holds several steps, `step` must name one, or be "all"."""
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
        raise ConfigError(f"rollout file {path} has two columns called {list_names(twice)}; keep one of them")
    steps = _cells_of(path, "step", table.column("step")) if "step" in columns else None
    chosen = _choose_step(path, steps, range(1, table.num_rows + 1), step)
    kept = table if len(chosen.kept) == table.num_rows else table.take(chosen.kept)
    cells = [_cells_of(path, column, kept.column(column)) for column in columns]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*cells, strict=True)]
    return Loaded(path, columns, rows, [RowLocation(path, index + 1) for index in chosen.kept], chosen.step)


def _cells_of(path: Path, name: str, cells: Any) -> list[Any]:
    """The cells as Python values. Cells without one (nanoseconds, years after 9999, text that is not UTF-8) raise various exceptions."""
    try:
        return cells.to_pylist()
    except Exception as problem:
        why = f"column {list_names([name])} of type {str(cells.type)[:60]} cannot be read ({first_line(problem)}); remove it"
        raise ConfigError(f"rollout file {path}: {why}") from None


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
        path, columns, [rows[index] for index in chosen.kept], [RowLocation(path, numbers[index]) for index in chosen.kept], chosen.step
    )


def _line(path: Path, number: int, line: str) -> dict[str, Any]:
    location = RowLocation(path, number)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise location.wrong(
                f"{list_names(sorted({name for name in names if names.count(name) > 1}))} is given twice; keep one of them"
            )
        return found

    try:
        row = json.loads(line, object_pairs_hook=once)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as problem:
        if number == 1:
            raise ConfigError(f"rollout file {path} is neither Parquet nor JSON lines: line 1 is {shortened(line.strip())}") from None
        raise location.wrong(f"the line is not JSON ({first_line(problem)}); give one object per line") from None
    if not isinstance(row, dict):
        raise location.wrong(f"{shortened(row)} is not a JSON object; give one object per line, {{column: value}}")
    if "\\u" in line:
        _check_characters(location, row)
    return row


def _check_characters(location: RowLocation, row: dict[str, Any]) -> None:
    """Refuse unpaired surrogates, which JSON can express but no UTF-8 file can hold."""
    for column, value in row.items():
        try:
            json.dumps([column, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            cell = f"{list_names([column])} is {ascii(value)[:60]}"
            raise location.wrong(f"{cell}, which has an unpaired surrogate character; give valid Unicode text") from None
        except RecursionError:
            raise location.wrong(f"{list_names([column])} is {shortened(value)}, which is nested too deeply; give flat lists") from None


class _Chosen(NamedTuple):
    step: int | None
    kept: list[int]
    """Indices of the rows of that step."""


def _choose_step(path: Path, steps: list[Any] | None, numbers: Sequence[int], requested: int | Literal["all"] | None) -> _Chosen:
    if steps is None or all(is_missing(value) for value in steps):
        if isinstance(requested, int):
            raise ConfigError(f"step is {requested} but {path} has no steps; remove it")
        return _Chosen(None, list(range(len(numbers))))
    whole = [whole_number(value) for value in steps]
    for number, value, found in zip(numbers, steps, whole, strict=True):
        if found is None:
            raise RowLocation(path, number).wrong(f"step is {shortened(value)}; give a whole number")
    present = sorted({value for value in whole if value is not None})
    if requested is None and len(present) > 1:
        raise ConfigError(f"{path} holds {len(present)} steps; choose one with --step: {_list_steps(present)}")
    if isinstance(requested, int) and requested not in present:
        raise ConfigError(f"step {requested} is not in {path}; it holds {_list_steps(present)}")
    if requested == "all":
        return _Chosen(None, list(range(len(numbers))))
    step = present[0] if requested is None else requested
    return _Chosen(step, [index for index, value in enumerate(whole) if value == step])


def _list_steps(steps: list[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:STEPS_NAMED])
    return shown if len(steps) <= STEPS_NAMED else f"{shown}, ... {steps[-1]}"

"""A rollout file -> `StoredRollouts`. TRL's and verl's logs are recognised by their columns.

Rows of a Parquet file or of JSON lines, as they are, of one step or of all.

Which format a file is in, told by its columns; any of them in the columns of a rollout file.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.messages import first_line
from tokencredit.errors import ConfigError
from tokencredit.rollout_io.convert import TRL_COLUMNS, VERL_COLUMNS, Converted, Render, chat_renderer, from_trl, from_verl
from tokencredit.rollout_io.schema import COLUMNS, Place, Reading, StoredRow, is_missing, listed, parse_row, shortened, whole_number
from tokencredit.types import Rollouts

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


Foreign = Literal["trl", "verl"]
Format = Literal["tokencredit", "trl", "verl"]

MARKS: dict[Foreign, frozenset[str]] = {"trl": TRL_COLUMNS, "verl": VERL_COLUMNS}


def format_of(loaded: Loaded) -> Format:
    columns = set(loaded.columns)
    if columns & {"response", "response_ids"}:
        return "tokencredit"
    for name in get_args(Foreign):
        if columns >= MARKS[name]:
            return name
    raise ConfigError(
        f"{loaded.path} is no rollout file: it holds {listed(loaded.columns)}; ours has prompt, response and score, "
        + ", ".join(f"{name}'s {listed(sorted(marks))}" for name, marks in MARKS.items())
    )


def convert_rows(loaded: Loaded, kind: Foreign, *, score: str | None = None, render: Render | None = None) -> Converted:
    absent = MARKS[kind] - set(loaded.columns) - ({"score"} if score else set())
    if absent:
        raise ConfigError(f"{loaded.path} is not {kind}'s: it has no {listed(sorted(absent))}; it holds {listed(loaded.columns)}")
    return from_trl(loaded, score=score, render=render) if kind == "trl" else from_verl(loaded, score=score)


def known_columns(loaded: Loaded) -> Converted:
    """Rows of our own format without columns that mean nothing here."""
    unknown = [column for column in loaded.columns if column not in COLUMNS]
    rows = [{column: value for column, value in row.items() if column in COLUMNS} for row in loaded.rows]
    return Converted(rows, (f"{len(unknown)} other columns are not read: {listed(unknown)}",) if unknown else ())


WITHOUT_LOGP = "no logp in the file: the model's own log-probs stand in for the sampler's, as if it had written these responses"


class StoredRollouts(NamedTuple):
    rollouts: Rollouts
    """Rows as in the file, groups numbered in order of appearance."""
    logp_known: bool
    """False: the file has no sampler log-probs, and `rollouts.behavior_logp` is NaN until a model has scored the tokens."""
    score: Float[Tensor, " seq"]
    reward: Float[Tensor, " seq"]
    """What the other trainer compared, as `advantage`: kept beside, never used."""
    advantage: Float[Tensor, " seq"] | None
    token_class: tuple[tuple[str, ...], ...] | None
    """Of the sampled tokens of each response."""
    prompts: tuple[str | None, ...]
    """As text; None where the file has ids and nobody could decode them, as `responses`."""
    responses: tuple[str | None, ...]
    answers: tuple[str | None, ...]
    step: int | None
    notes: tuple[str, ...]
    """What the reader took for granted, in words."""


def read_rollouts(path: Path, policy: Reading | None = None, *, step: int | None = None) -> StoredRollouts:
    """Text is encoded by the policy's tokenizer; ids need none. A file with several steps needs one named."""
    loaded = load(path, step=step)
    kind = format_of(loaded)
    if kind == "tokencredit":
        _check_columns(path, loaded.columns)
        found = known_columns(loaded)
    else:
        found = convert_rows(loaded, kind, render=None if policy is None else chat_renderer(policy.tokenizer))
    named = any(row.get("group") is not None for row in found.rows)
    rows = [parse_row(place, cells, policy, named_groups=named) for place, cells in zip(loaded.places, found.rows, strict=True)]
    for column in ("logp", "token_class"):
        _all_or_none(column, rows, loaded.places)
    advantage = _column([row.advantage for row in rows])
    logp_known = rows[0].logp is not None
    classes = None if rows[0].token_class is None else tuple(_sampled(row, row.token_class or ()) for row in rows)
    return StoredRollouts(
        rollouts=Rollouts(
            prompts=tuple(row.prompt_ids for row in rows),
            tokens=_padded([row.response_ids for row in rows], 0),
            mask=_padded([row.mask for row in rows], False),
            group=torch.tensor(_groups(rows, loaded.places)),
            behavior_logp=_padded([row.logp or (math.nan,) * len(row.mask) for row in rows], 0.0),
            finished=torch.tensor([row.finished for row in rows]),
        ),
        logp_known=logp_known,
        score=_column([row.score for row in rows]),
        reward=_column([row.reward for row in rows]),
        advantage=None if bool(advantage.isnan().all()) else advantage,
        token_class=classes,
        prompts=tuple(row.prompt for row in rows),
        responses=tuple(row.response for row in rows),
        answers=tuple(row.answer for row in rows),
        step=loaded.step,
        notes=found.notes if logp_known else (*found.notes, WITHOUT_LOGP),
    )


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    for either in (("prompt", "prompt_ids"), ("score",)):
        if not set(either) & set(columns):
            raise ConfigError(f"{path} has no column {' or '.join(either)}; it holds {listed(columns)}")


def _all_or_none(column: str, rows: Sequence[StoredRow], places: Sequence[Place]) -> None:
    without = [place for place, row in zip(places, rows, strict=True) if getattr(row, column) is None]
    if without and len(without) < len(rows):
        raise without[0].wrong(f"{column} is missing though other rows have it; give it for every response or for none")


def _groups(rows: Sequence[StoredRow], places: Sequence[Place]) -> list[int]:
    """By name, or by prompt where no groups are named."""
    numbers: dict[Any, int] = {}
    first: dict[int, int] = {}
    found: list[int] = []
    for index, row in enumerate(rows):
        group = numbers.setdefault(row.prompt_ids if row.group is None else row.group, len(numbers))
        asked = first.setdefault(group, index)
        if row.prompt_ids != rows[asked].prompt_ids:
            raise places[index].wrong(f"group is {row.group!r}, as in row {places[asked].row}, but the prompt is another one")
        found.append(group)
    return found


def _sampled(row: StoredRow, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(value for value, inside in zip(values, row.mask, strict=True) if inside)


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _padded(rows: Sequence[Sequence[Any]], filling: float | bool) -> Tensor:
    width = max(len(row) for row in rows)
    dtype = {bool: torch.bool, int: torch.long, float: torch.float64}[type(filling)]
    return torch.tensor([[*row, *[filling] * (width - len(row))] for row in rows], dtype=dtype)

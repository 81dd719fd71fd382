"""Which format a file is in, told by its columns; any of them in the columns of a rollout file."""

from typing import Literal, get_args

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.chat import Render
from tokencredit.rollout_io.convert import TRL_COLUMNS, from_trl
from tokencredit.rollout_io.converted import Converted
from tokencredit.rollout_io.from_verl import VERL_COLUMNS, from_verl
from tokencredit.rollout_io.load import Loaded
from tokencredit.rollout_io.schema import COLUMNS, listed

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

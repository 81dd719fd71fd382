"""Write rollout files: check the output path, turn rollouts in memory into rows, and write rows as Parquet or JSON lines."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.schema import COLUMNS
from tokencredit.storage.table_file import write_table

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from tokencredit.types import Rollouts

SUFFIXES = (".parquet", ".jsonl")


def check_out(path: Path, *, force: bool) -> None:
    """ConfigError, before any work is done, for an output file that cannot or must not be written."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"out {path} ends in {path.suffix or 'nothing'!r}; it must end in {' or '.join(SUFFIXES)}")
    if path.is_dir():
        raise ConfigError(f"out {path} is a folder; give a file")
    if path.exists() and not force:
        raise ConfigError(f"out {path} exists; name another file, or overwrite it with --force")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"out {path} cannot be written: the folder {path.absolute().parent} does not exist")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise ConfigError(f"out {path} cannot be written: the folder {path.absolute().parent} is not writable")


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], *, force: bool = False) -> None:
    """Write the rows as a rollout file. A column that a row lacks is null there."""
    if not rows:
        raise ValueError(f"there are no responses to write to {path}")
    used = {column for row in rows for column in row}
    if unknown := used - set(COLUMNS):
        raise ValueError(f"{', '.join(sorted(unknown))} is not a column of a rollout file; the columns are {', '.join(COLUMNS)}")
    columns = {column: [row.get(column) for row in rows] for column in COLUMNS if column in used}
    groups = columns.get("group", [])
    if any(isinstance(value, str) for value in groups):
        columns["group"] = [None if value is None else str(value) for value in groups]
    write_columns(path, columns, force=force)


def write_columns(path: Path, columns: Mapping[str, Sequence[Any]], *, force: bool = False) -> None:
    check_out(path, force=force)
    try:
        write_table(path, columns)
    except OSError as problem:
        raise ConfigError(f"out {path} cannot be written: {problem.strerror or problem}") from None


def rollout_rows(
    rollouts: "Rollouts",
    score: 'Float[Tensor, " seq"]',
    *,
    reward: 'Float[Tensor, " seq"] | None' = None,
    advantage: 'Float[Tensor, " seq"] | None' = None,
    token_class: Sequence[Sequence[str]] | None = None,
    prompts: Sequence[str | None] | None = None,
    responses: Sequence[str | None] | None = None,
    answers: Sequence[str | None] | None = None,
    step: int | None = None,
) -> list[dict[str, Any]]:
    """One row per response, with ids up to the last sampled token; `token_class` holds one class per sampled token.

    Tokens that the sampler could not score or did not sample have log-prob null.
    """
    rows: list[dict[str, Any]] = []
    for index, prompt in enumerate(rollouts.prompts):
        inside = rollouts.mask[index].tolist()
        length = max((position + 1 for position, sampled in enumerate(inside) if sampled), default=0)
        if length == 0:
            raise ValueError(f"response {index} has no sampled token, which a rollout file cannot hold; leave the response out")
        inside = inside[:length]
        logp = zip(rollouts.behavior_logp[index, :length].tolist(), inside, strict=True)
        row: dict[str, Any] = {
            "group": int(rollouts.group[index]),
            "prompt_ids": list(prompt),
            "response_ids": rollouts.tokens[index, :length].tolist(),
            "mask": inside,
            "logp": [value if sampled and value == value else None for value, sampled in logp],
            "finished": bool(rollouts.finished[index]),
            "score": float(score[index]),
        }
        for column, values in (("reward", reward), ("advantage", advantage)):
            row |= {} if values is None else {column: float(values[index])}
        for column, texts in (("prompt", prompts), ("response", responses), ("answer", answers)):
            row |= {} if texts is None else {column: texts[index]}
        if token_class is not None:
            names = iter(token_class[index])
            row["token_class"] = [next(names) if sampled else "" for sampled in inside]
        rows.append(row if step is None else {"step": step, **row})
    return rows

"""`tokencredit convert`: rollouts logged by TRL or verl -> a rollout file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.models import model_folder
from tokencredit.rollout_io.convert import Render, chat_renderer, convert_rows, format_of
from tokencredit.rollout_io.load import load
from tokencredit.rollout_io.write import check_out, write_rows
from tokencredit.text import sanitize


@dataclass(frozen=True)
class ConvertOptions:
    """Convert rollouts logged by TRL (completions_*.parquet) or verl ({step}.jsonl) to one rollout file."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """One or more logged files."""
    out: Path
    """Rollout file to write (.parquet or .jsonl)."""
    origin: Annotated[Literal["auto", "trl", "verl"], tyro.conf.arg(name="from")] = "auto"
    """Trainer that wrote the files; auto: detect it from the columns."""
    score: str | None = None
    """Column of the score; `sum` adds up TRL's reward columns."""
    model: str | None = None
    """Model folder whose chat template renders chat messages."""
    force: bool = False
    """Overwrite the output."""


def _renderer(name: str) -> Render:
    from transformers import AutoTokenizer

    folder = model_folder(name)
    try:
        return chat_renderer(AutoTokenizer.from_pretrained(folder))
    except (OSError, ValueError, KeyError) as problem:
        raise ConfigError(f"model folder {folder} has no tokenizer that can be loaded: {problem}") from None


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ConvertOptions, args=list(arguments), prog="tokencredit convert")
    if not options.files:
        raise ConfigError("no file to convert; name the files that TRL or verl logged")
    check_out(options.out, force=options.force)
    render = None if options.model is None else _renderer(options.model)
    rows: list[dict[str, Any]] = []
    notes: dict[str, None] = {}
    for path in options.files:
        loaded = load(path, step="all")
        kind = format_of(loaded) if options.origin == "auto" else options.origin
        if kind == "tokencredit":
            raise ConfigError(f"{path} is already a rollout file; there is nothing to convert")
        found = convert_rows(loaded, kind, score=options.score, render=render)
        rows += found.rows
        notes |= dict.fromkeys(found.notes)
    write_rows(options.out, rows, force=options.force)
    for note in notes:
        print(sanitize(note))
    groups = {(row["step"], row["prompt"]) for row in rows}
    ungraded = sum(row["score"] != row["score"] for row in rows)
    print(f"{len(rows)} responses in {len(groups)} groups, {ungraded} not graded, written to {options.out}")
    return EXIT_OK

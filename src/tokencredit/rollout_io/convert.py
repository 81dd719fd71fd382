"""TRL's completions_*.parquet: step, prompt, completion, a column per reward function, columns logged by the user, advantage."""

import math
from collections.abc import Sequence
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.chat import Render, prompt_text, response_text
from tokencredit.rollout_io.converted import Converted
from tokencredit.rollout_io.load import Loaded
from tokencredit.rollout_io.schema import is_missing, listed, number

TRL_COLUMNS = frozenset({"prompt", "completion", "advantage"})
TRL_NOTE = (
    "TRL logs text without end tokens and without saying which responses were cut: every response is taken as finished, "
    "and its text is encoded anew"
)


def from_trl(loaded: Loaded, *, score: str | None, render: Render | None) -> Converted:
    chosen = _score_columns(loaded, score)
    rows: list[dict[str, Any]] = []
    for place, row in zip(loaded.places, loaded.rows, strict=True):
        rows.append(
            {
                "step": row.get("step"),
                "prompt": prompt_text(place, row.get("prompt"), render),
                "response": response_text(place, row.get("completion")),
                "score": _sum([number(place, row, column) for column in chosen]),
                "advantage": number(place, row, "advantage"),
            }
        )
    said = listed(chosen) if len(chosen) == 1 else f"the plain sum of {listed(chosen)} (TRL's reward weights are not in the file)"
    return Converted(rows, (TRL_NOTE, f"score is {said}"))


def _sum(rewards: Sequence[float]) -> float:
    """As TRL adds them: a function that did not apply is left out; NaN where none applied."""
    given = [reward for reward in rewards if not math.isnan(reward)]
    return sum(given) if given else math.nan


def _score_columns(loaded: Loaded, asked: str | None) -> list[str]:
    """Reward functions and columns logged by the user look alike; only numbers can be rewards."""

    def only_numbers(column: str) -> bool:
        values = [row.get(column) for row in loaded.rows]
        return all(is_missing(value) or isinstance(value, int | float) for value in values) and not all(
            is_missing(value) for value in values
        )

    numeric = [column for column in loaded.columns if column not in TRL_COLUMNS | {"step"} and only_numbers(column)]
    if asked is not None and asked in loaded.columns:
        return [asked]
    there = listed(numeric) or "none"
    if asked not in (None, "sum"):
        raise ConfigError(f"score column {asked!r} is not in {loaded.path}; columns of numbers are: {there}")
    if not numeric:
        raise ConfigError(f"{loaded.path} has no column of rewards; it holds {listed(loaded.columns)}")
    if asked is None and len(numeric) > 1:
        raise ConfigError(
            f"{loaded.path} has {len(numeric)} columns of numbers that may be the score: {there}; "
            "choose one with `tokencredit convert --score COLUMN`, or --score sum for their sum"
        )
    return numeric

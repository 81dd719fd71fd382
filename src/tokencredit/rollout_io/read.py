"""A rollout file -> `StoredRollouts`. TRL's and verl's logs are recognised by their columns."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.convert import chat_renderer, convert_rows, format_of, known_columns
from tokencredit.rollout_io.load import load
from tokencredit.rollout_io.schema import Place, Reading, StoredRow, listed, parse_row
from tokencredit.types import Rollouts

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

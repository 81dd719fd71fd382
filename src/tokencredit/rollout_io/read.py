"""Read a rollout file as `StoredRollouts`. TRL's and verl's logs are recognised by their columns."""

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
from tokencredit.rollout_io.schema import RowLocation, StoredRow, TextEncoder, list_names, parse_row
from tokencredit.types import Rollouts

WITHOUT_LOGP = "no logp in the file: the model's own log-probs stand in for the sampler's, as if it had sampled these responses"


class StoredRollouts(NamedTuple):
    rollouts: Rollouts
    """Rows as in the file, groups numbered in order of appearance."""
    logp_known: bool
    """False: the file has no sampler log-probs, and `rollouts.behavior_logp` is NaN until a model scores the tokens."""
    score: Float[Tensor, " seq"]
    reward: Float[Tensor, " seq"]
    """The other trainer's reward, kept like `advantage` for comparison and never used."""
    advantage: Float[Tensor, " seq"] | None
    token_class: tuple[tuple[str, ...], ...] | None
    """One class per sampled token of each response."""
    prompts: tuple[str | None, ...]
    """As text, like `responses`; None where the file has ids and no tokenizer is there to decode them."""
    responses: tuple[str | None, ...]
    answers: tuple[str | None, ...]
    step: int | None
    notes: tuple[str, ...]
    """What the reader had to assume."""


def read_rollouts(path: Path, policy: TextEncoder | None = None, *, step: int | None = None) -> StoredRollouts:
    """Text needs a policy, whose tokenizer encodes it; ids need none. Where a file has several steps, `step` must name one."""
    loaded = load(path, step=step)
    kind = format_of(loaded)
    if kind == "tokencredit":
        _check_columns(path, loaded.columns)
        found = known_columns(loaded)
    else:
        found = convert_rows(loaded, kind, render=None if policy is None else chat_renderer(policy.tokenizer))
    named = any(row.get("group") is not None for row in found.rows)
    rows = [parse_row(location, cells, policy, named_groups=named) for location, cells in zip(loaded.locations, found.rows, strict=True)]
    for column in ("logp", "token_class"):
        _all_or_none(column, rows, loaded.locations)
    advantage = _column([row.advantage for row in rows])
    logp_known = rows[0].logp is not None
    classes = None if rows[0].token_class is None else tuple(_sampled(row, row.token_class or ()) for row in rows)
    return StoredRollouts(
        rollouts=Rollouts(
            prompts=tuple(row.prompt_ids for row in rows),
            tokens=_padded([row.response_ids for row in rows], 0),
            mask=_padded([row.mask for row in rows], False),
            group=torch.tensor(_groups(rows, loaded.locations)),
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
            raise ConfigError(f"{path} has no column {' or '.join(either)}; it holds {list_names(columns)}")


def _all_or_none(column: str, rows: Sequence[StoredRow], locations: Sequence[RowLocation]) -> None:
    without = [location for location, row in zip(locations, rows, strict=True) if getattr(row, column) is None]
    if without and len(without) < len(rows):
        raise without[0].wrong(f"{column} is missing though other rows have it; give it for every response or for none")


def _groups(rows: Sequence[StoredRow], locations: Sequence[RowLocation]) -> list[int]:
    """Number the groups: by name, or by prompt where the file names no groups."""
    numbers: dict[Any, int] = {}
    first: dict[int, int] = {}
    found: list[int] = []
    for index, row in enumerate(rows):
        group = numbers.setdefault(row.prompt_ids if row.group is None else row.group, len(numbers))
        other = first.setdefault(group, index)
        if row.prompt_ids != rows[other].prompt_ids:
            raise locations[index].wrong(
                f"group is {row.group!r}, as in row {locations[other].row}, but the prompt differs; give each prompt its own group"
            )
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

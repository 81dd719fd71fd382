"""The columns of a rollout file, and how a row is checked and parsed. Every error names the file, the row and the column."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError

COLUMNS = (
    "step", "group", "prompt", "prompt_ids", "response", "response_ids", "score", "reward", "advantage", "logp", "mask", "finished",
    "token_class", "answer",
)  # fmt: skip
"""Every column of a rollout file, in the order in which it is written; docs/rollout-files.md defines each."""

COLUMNS_NAMED = 30
"""Names of columns that an error message lists at most."""
LARGEST = 2**63 - 1
"""No tensor and no column can hold a larger integer."""
LARGEST_REAL = 1e18

Item = TypeVar("Item")


class RowLocation(NamedTuple):
    """A row of a file, counted from 1; in JSON lines, the line."""

    file: Path
    row: int

    def wrong(self, why: str) -> ConfigError:
        return ConfigError(f"{self.file}, row {self.row}: {why}")


def list_names(columns: Iterable[str]) -> str:
    """Column names for an error message: at most `COLUMNS_NAMED`, long or unprintable ones shortened."""
    names = [column if column.isprintable() and len(column) <= 60 else shortened(column) for column in columns]
    return ", ".join(names[:COLUMNS_NAMED]) + (f" and {len(names) - COLUMNS_NAMED} more" if len(names) > COLUMNS_NAMED else "")


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def whole_number(value: Any) -> int | None:
    """The integer, also if written as a float (pandas writes integers of a column with missing values so); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == math.inf:
        return None
    return int(value) if value == int(value) and abs(value) <= LARGEST else None


def finite(value: float) -> float | None:
    """The float; None for NaN and infinity, and for a number whose square would overflow single precision."""
    return float(value) if abs(value) <= LARGEST_REAL else None


def number(location: RowLocation, cells: Mapping[str, Any], column: str) -> float:
    """The number in a column, NaN where it is missing; true and false are 1 and 0."""
    value = cells.get(column)
    if is_missing(value):
        return math.nan
    if not isinstance(value, int | float) or finite(value) is None:
        raise location.wrong(f"{column} is {shortened(value)}; give a finite number (at most 1e18 in size), or null where it is unknown")
    return float(value)


def text(location: RowLocation, cells: Mapping[str, Any], column: str) -> str | None:
    value = cells.get(column)
    if value is not None and not isinstance(value, str):
        why = "; chat messages are joined by `tokencredit convert --model DIR`" if isinstance(value, list) else ""
        raise location.wrong(f"{column} is {shortened(value)}; give text{why}")
    return value


def _items(
    location: RowLocation, cells: Mapping[str, Any], column: str, read: Callable[[Any], Item | None], what: str, length: int | None
) -> tuple[Item, ...] | None:
    values = cells.get(column)
    if values is None:
        return None
    if not isinstance(values, list):
        raise location.wrong(f"{column} is {shortened(values)}; give a list of {what}")
    found = [read(value) for value in values]
    for index, item in enumerate(found):
        if item is None:
            raise location.wrong(f"{column} holds {shortened(values[index])} at position {index + 1}; give a list of {what}")
    if length is not None and len(found) != length:
        raise location.wrong(f"{column} holds {len(found)} {what} but the response has {length} tokens; give one per token")
    return tuple(item for item in found if item is not None)


def token_ids(location: RowLocation, cells: Mapping[str, Any], column: str) -> tuple[int, ...] | None:
    return _items(
        location, cells, column, lambda value: None if (whole := whole_number(value)) is None or whole < 0 else whole, "token ids", None
    )


def log_probs(location: RowLocation, cells: Mapping[str, Any], column: str, length: int) -> tuple[float, ...] | None:
    """NaN where the sampler could not score a token."""

    def read(value: Any) -> float | None:
        if is_missing(value):
            return math.nan
        found = finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        return found if found is not None and found <= 1e-3 else None

    return _items(location, cells, column, read, "log-probs (finite and at most 0, or null)", length)


def booleans(location: RowLocation, cells: Mapping[str, Any], column: str, length: int) -> tuple[bool, ...] | None:
    """A list of booleans; 0 and 1 are accepted too, because trainers store masks as numbers."""

    def read(value: Any) -> bool | None:
        return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None

    return _items(location, cells, column, read, "booleans (true or false)", length)


def strings(location: RowLocation, cells: Mapping[str, Any], column: str, length: int) -> tuple[str, ...] | None:
    return _items(location, cells, column, lambda value: value if isinstance(value, str) else None, "strings", length)


def boolean(location: RowLocation, cells: Mapping[str, Any], column: str) -> bool | None:
    value = cells.get(column)
    if is_missing(value):
        return None
    if value not in (0, 1):
        raise location.wrong(f"{column} is {shortened(value)}; give true or false")
    return bool(value)


def group_name(location: RowLocation, cells: Mapping[str, Any], column: str) -> str:
    value = cells.get(column)
    whole = whole_number(value)
    if not isinstance(value, str) and whole is None:
        raise location.wrong(f"{column} is {shortened(value)}; give a string or a whole number, the same for responses to one prompt")
    return str(value) if whole is None else str(whole)


class TextEncoder(Protocol):
    """The part of a policy that reading needs: text to ids and back, and the size of the vocabulary."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def model(self) -> Any: ...

    @property
    def end_tokens(self) -> tuple[int, ...]: ...

    def encode(self, text: str) -> list[int]: ...


class StoredRow(NamedTuple):
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logp: tuple[float, ...] | None
    finished: bool
    score: float
    reward: float
    advantage: float
    token_class: tuple[str, ...] | None
    group: str | None
    prompt: str | None
    response: str | None
    answer: str | None


def parse_row(location: RowLocation, cells: Mapping[str, Any], policy: TextEncoder | None, *, named_groups: bool) -> StoredRow:
    finished = boolean(location, cells, "finished")
    prompt_ids = _ids(location, cells, "prompt", policy)
    if not prompt_ids:
        raise location.wrong("prompt has no tokens; give a prompt with at least one token")
    response_ids = _ids(location, cells, "response", policy)
    ends = () if policy is None else policy.end_tokens
    if cells.get("response_ids") is not None:
        finished = (not ends or response_ids[-1:] in [(end,) for end in ends]) if finished is None else finished
    elif finished is not False and ends and response_ids[-1:] not in [(end,) for end in ends]:
        finished, response_ids = True, (*response_ids, ends[0])
    if not response_ids:
        raise location.wrong("response has no tokens; remove the row")
    length = len(response_ids)
    mask = booleans(location, cells, "mask", length) or (True,) * length
    if not any(mask):
        raise location.wrong("mask marks no token as sampled by the policy; remove the row")
    score = number(location, cells, "score")
    reward = number(location, cells, "reward")
    return StoredRow(
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        mask=mask,
        logp=log_probs(location, cells, "logp", length),
        finished=finished is not False,
        score=score,
        reward=score if math.isnan(reward) else reward,
        advantage=number(location, cells, "advantage"),
        token_class=strings(location, cells, "token_class", length),
        group=group_name(location, cells, "group") if named_groups else None,
        prompt=_text(location, cells, "prompt", prompt_ids, policy),
        response=_text(location, cells, "response", response_ids, policy),
        answer=text(location, cells, "answer"),
    )


def _ids(location: RowLocation, cells: Mapping[str, Any], column: str, policy: TextEncoder | None) -> tuple[int, ...]:
    """The ids as given, or the ids of the text."""
    given, written = token_ids(location, cells, f"{column}_ids"), text(location, cells, column)
    if given is not None:
        if policy is not None and given and max(given) >= (size := policy.model.get_input_embeddings().weight.shape[0]):
            raise location.wrong(
                f"{column}_ids holds {max(given)} but the model knows ids below {size}; give the model that sampled the rollouts"
            )
        return given
    if written is None:
        raise location.wrong(f"{column} and {column}_ids are both missing; give one of them")
    if policy is None:
        raise location.wrong(f"{column} is text, which needs a tokenizer; give --model DIR, or {column}_ids")
    ids = tuple(policy.encode(written))
    unknown = policy.tokenizer.unk_token_id
    if unknown is not None and unknown in ids:
        raise location.wrong(
            f"{column} is {written!r:.60}, which the model's tokenizer cannot encode; give the model that sampled the rollouts"
        )
    return ids


def _text(location: RowLocation, cells: Mapping[str, Any], column: str, ids: tuple[int, ...], policy: TextEncoder | None) -> str | None:
    written = text(location, cells, column)
    if written is not None or policy is None:
        return written
    kept = ids[:-1] if ids[-1] in policy.end_tokens else ids
    return str(policy.tokenizer.decode(list(kept), skip_special_tokens=False))

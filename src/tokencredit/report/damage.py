"""What must hold of tables and plans of a run folder; a file where it does not is damaged."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_or_none(value: Any) -> bool:
    return value is None or _whole(value)


def _text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


OF_COLUMNS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "row": (_whole, "a whole number"),
    "position": (_whole, "a whole number"),
    "group": (_whole, "a whole number"),
    "token_id": (_whole_or_none, "a whole number"),
    "optimizer_step": (_whole_or_none, "a whole number"),
    "prompt": (_text_or_none, "text"),
    "text": (_text_or_none, "text"),
    "token_class": (_text_or_none, "text"),
    "step_right": (lambda value: value in (None, True, False), "true or false"),
}
"""Columns that are counted, sorted or joined by. In any other a cell that is no number is left blank."""


def check_columns(said: str, columns: Mapping[str, Sequence[Any]]) -> None:
    for name, (holds, what) in OF_COLUMNS.items():
        for at, value in enumerate(columns.get(name, ())):
            if not holds(value):
                raise ConfigError(f"{said}: {name} of line {at + 1} is {shortened(value)}, not {what}")
    if len(set(zip(columns.get("row", ()), columns.get("position", ()), strict=True))) < len(columns.get("row", ())):
        raise ConfigError(f"{said}: a token is in it twice")


def check_plan(said: str, plan: Mapping[str, Any]) -> None:
    """Optimizer steps, each with micro-batches of rows."""
    steps = plan["steps"]
    if not isinstance(steps, list) or not all(isinstance(step, dict) and _are_rows(step.get("micro_batches")) for step in steps):
        raise ConfigError(f"{said} has steps {shortened(steps)}; each needs micro_batches, lists of rows")


def _are_rows(batches: Any) -> bool:
    return isinstance(batches, list) and all(isinstance(batch, list) and all(map(_whole, batch)) for batch in batches)

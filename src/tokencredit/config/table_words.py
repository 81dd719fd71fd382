"""A table in words, as on the command line: `min_words=2 max_words=4`. Values are JSON; what is no JSON is text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

BETWEEN_SETTINGS = re.compile(r"\+(?=[A-Za-z_][\w.-]*=)")
"""A plus begins a setting only where a name and `=` follow: 1e+5 is a number."""


def read_table(words: Sequence[str]) -> dict[str, Any]:
    """ValueError for a word without a name; the last one counts where a name stands twice."""
    table = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word[:60]!r} is not written name=value")
        table[name] = _read_value(value)
    return table


def write_table(table: Mapping[str, Any]) -> list[str]:
    """Words that `read_table` reads back."""
    return [f"{name}={_write_value(value)}" for name, value in table.items()]


def _read_value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _write_value(value: Any) -> str:
    return value if isinstance(value, str) and _read_value(value) == value else json.dumps(value)


def settings_apart(label: str) -> tuple[str, list[str]]:
    """The recipe of a label, and its settings as they were written."""
    recipe, _, written = label.partition(":")
    return recipe, BETWEEN_SETTINGS.split(written) if written else []

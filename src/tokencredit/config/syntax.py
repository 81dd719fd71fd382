"""Short forms for the command line.

A task, alone or with its main field: `countdown`, `reasoning-gym:gcd`, `jsonl:rows.jsonl`, `own:my_task.py:Capitals`.

A table: `min_words=2 max_words=4`. Values are JSON; a value that is not valid JSON is text.

A recipe with settings: `delta:credit.scope=group+credit.proxy=head`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from tokencredit.config.messages import shortened
from tokencredit.config.recipes import RECIPES
from tokencredit.config.train import CHOICES
from tokencredit.errors import ConfigError
from tokencredit.text import suggest

MAIN_FIELDS = {"jsonl": "path", "code": "path", "reasoning-gym": "dataset", "own": "path"}
"""Task -> the field that follows the colon."""
FLAG = "--task"


def task_fields(word: str) -> dict[str, str]:
    """`reasoning-gym:gcd` -> {"type": "reasoning-gym", "dataset": "gcd"}."""
    kind, colon, about = word.partition(":")
    if kind not in CHOICES["task"]:
        raise ConfigError(f"task {shortened(word)} is not known; {suggest(kind[:60], CHOICES['task'])}")
    if colon and (kind not in MAIN_FIELDS or not about):
        takes = f"write {kind}:{MAIN_FIELDS[kind].upper()}" if kind in MAIN_FIELDS else f"nothing follows {kind!r}"
        raise ConfigError(f"task {shortened(word)} cannot be read: {takes}")
    return {"type": kind} | ({MAIN_FIELDS[kind]: about} if colon else {})


def with_task_fields(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """A layer of a configuration whose task may be one word."""
    return {**layer, "task": task_fields(layer["task"])} if isinstance(layer.get("task"), str) else layer


def with_task_flags(flags: Sequence[str]) -> list[str]:
    """`--task reasoning-gym:gcd` -> `--task.type reasoning-gym --task.dataset gcd`, so that its dials can follow."""
    spelled_out: list[str] = []
    words = iter(flags)
    for word in words:
        name, equals, value = word.partition("=")
        if name != FLAG:
            spelled_out.append(word)
            continue
        given = value if equals else next(words, None)
        if not given or given.startswith("-"):
            raise ConfigError(f"{FLAG} needs the name of a task; there is {', '.join(CHOICES['task'])}")
        for field, text in task_fields(given).items():
            spelled_out += [f"{FLAG}.{field}", text]
    return spelled_out


BETWEEN_SETTINGS = re.compile(r"\+(?=[A-Za-z_][\w.-]*=)")
"""A plus begins a setting only where a name and `=` follow: 1e+5 is a number."""


def read_table(words: Sequence[str]) -> dict[str, Any]:
    """Raises ValueError for a word without `name=`; the last value of a repeated name counts."""
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
    """Split a label into the recipe and the texts of its settings."""
    recipe, _, written = label.partition(":")
    return recipe, BETWEEN_SETTINGS.split(written) if written else []


class Wanted(NamedTuple):
    label: str
    """As it was written."""
    recipe: str
    settings: dict[str, Any]
    """Dotted name -> value."""


def read_recipe(label: str, may_vary: Sequence[str]) -> Wanted:
    """`may_vary`: tables and dotted names that the label may set. Values are not validated here."""
    recipe, written = settings_apart(label)
    if recipe not in RECIPES:
        raise ConfigError(f"recipes: {shortened(recipe)} is not known; {suggest(recipe[:60], RECIPES)}")
    if ":" in label and not written:
        raise ConfigError(f"recipes: {shortened(label)} ends in a colon; write settings after it: {recipe}:credit.type=uniform")
    try:
        table = read_table(written)
    except ValueError as problem:
        raise ConfigError(f"recipes: {shortened(label)}: {problem}") from None
    settings = {name.replace("-", "_"): value for name, value in table.items()}
    for name in settings:
        if name not in may_vary and not name.startswith(tuple(f"{table}." for table in may_vary)):
            raise ConfigError(
                f"recipes: {shortened(label)} sets {name}, which must be the same for all; a recipe may set {', '.join(may_vary)}"
            )
        if within := next((other for other in settings if other.startswith(f"{name}.")), None):
            raise ConfigError(f"recipes: {shortened(label)} sets {name} and {within}, a part of it; name one of them")
    return Wanted(label, recipe, settings)


def as_layer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as the tables of a config file."""
    layer: dict[str, Any] = {}
    for name, value in sorted(settings.items(), key=lambda item: not item[0].endswith(".type")):
        *tables, field = name.split(".")
        place = layer
        for table in tables:
            place = place.setdefault(table, {})
        place[field] = value
    return layer

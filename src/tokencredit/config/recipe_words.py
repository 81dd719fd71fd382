"""A recipe with settings of its own, as on the command line: `delta:credit.scope=group+credit.proxy=head`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokencredit.config.messages import shortened
from tokencredit.config.recipes import RECIPES
from tokencredit.config.table_words import read_table, settings_apart
from tokencredit.errors import ConfigError
from tokencredit.text import nearest


class Wanted(NamedTuple):
    label: str
    """As it was written."""
    recipe: str
    settings: dict[str, Any]
    """Dotted name -> value."""


def read_recipe(label: str, may_vary: Sequence[str]) -> Wanted:
    """`may_vary`: tables and dotted names that it may set. What values mean is not asked here."""
    recipe, written = settings_apart(label)
    if recipe not in RECIPES:
        raise ConfigError(f"recipes: {shortened(recipe)} is not known; {nearest(recipe[:60], RECIPES)}")
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

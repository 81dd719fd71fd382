"""What is compared: `dapo,delta,delta:credit.scope=group+credit.proxy=head`. A recipe, or one with settings of its own after a colon."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tokencredit.compose import overlay, validated
from tokencredit.config import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.mistakes import shortened
from tokencredit.nearest import nearest
from tokencredit.recipes import RECIPES
from tokencredit.stages import Recipe
from tokencredit.table_words import read_table, settings_apart

MAY_VARY = (*Recipe.model_fields, "optimizer", "reward", "lora", "sampling.prompts", "sampling.group_size", "steps")
"""Everything else is the same for all, or they would not be compared on the same thing.

Steps: whether one recipe ends where another does, with fewer rollouts and its rate decayed by then, is seen in no part of a longer run.
"""

RATE = "optimizer.learning_rate"
CONTROL = "random-lambda"
"""Coefficients drawn at random: what it differs by is noise."""


class Arm(NamedTuple):
    label: str
    """As it was asked for."""
    config: TrainConfig

    @property
    def control(self) -> bool:
        return self.label.partition(":")[0] == CONTROL


class Wanted(NamedTuple):
    label: str
    recipe: str
    settings: dict[str, Any]
    """Dotted name -> value."""

    @property
    def fixes_rate(self) -> bool:
        return RATE in self.settings


def read_recipes(text: str) -> list[Wanted]:
    """Names and settings as they were written; what they mean is for `make_arm`."""
    found = [_read_one(part.strip()) for part in text.split(",")]
    labels = [one.label for one in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(f"recipes names {', '.join(twice)} more than once; name it once")
    return found


def _read_one(label: str) -> Wanted:
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
        if name not in MAY_VARY and not name.startswith(tuple(f"{table}." for table in MAY_VARY)):
            raise ConfigError(
                f"recipes: {shortened(label)} sets {name}, which must be the same for all; a recipe may set {', '.join(MAY_VARY)}"
            )
    return Wanted(label, recipe, settings)


def make_arm(wanted: Wanted, configure: Callable[[str], TrainConfig]) -> Arm:
    """`configure` gives the configuration of a recipe under the files and flags that hold for all."""
    config = configure(wanted.recipe)
    if not wanted.settings:
        return Arm(wanted.label, config)
    try:
        return Arm(wanted.label, with_settings(config, wanted.settings))
    except ConfigError as problem:
        raise ConfigError(f"recipes: {shortened(wanted.label)}: {problem}") from None


def with_settings(config: TrainConfig, settings: dict[str, Any]) -> TrainConfig:
    """The configuration with other values at dotted names, checked as a whole; another `type` brings its own defaults."""
    layer: dict[str, Any] = {}
    for name, value in sorted(settings.items(), key=lambda item: not item[0].endswith(".type")):
        *tables, field = name.split(".")
        place = layer
        for table in tables:
            place = place.setdefault(table, {})
        place[field] = value
    return validated(overlay(config.model_dump(), layer))


def choose_reference(asked: str | None, arms: Sequence[Arm]) -> str:
    """The one asked for; else dapo if it takes part, else the first."""
    labels = [arm.label for arm in arms]
    if asked is not None and asked not in labels:
        raise ConfigError(f"reference {shortened(asked)} is not among the recipes; {nearest(asked, labels)}")
    return asked or ("dapo" if "dapo" in labels else labels[0])

"""What is compared: `dapo,delta,delta:credit.scope=group+credit.proxy=head`. A recipe, or one with settings of its own after a colon."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tokencredit.config import Recipe
from tokencredit.config.messages import shortened
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import overlay, validated
from tokencredit.config.syntax import Wanted, as_layer, read_recipe
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.text import suggest

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


def read_recipes(text: str) -> list[Wanted]:
    """Names and settings as they were written; what they mean is for `make_arm`."""
    found = [read_recipe(part.strip(), MAY_VARY) for part in text.split(",")]
    labels = [one.label for one in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(f"recipes names {', '.join(twice)} more than once; name it once")
    return found


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
    return validated(overlay(config.model_dump(), as_layer(settings)))


def warn_if_group_size_overrides_recipe(wanted: Wanted, arm: Arm) -> str | None:
    """A recipe made for one response to a prompt, under a file or flag that names a group size for all; in words."""
    size = arm.config.sampling.group_size
    made_for_it = not RECIPES[wanted.recipe].asks_once or arm.config.needs_siblings() is not None
    if size == 1 or made_for_it or "sampling.group_size" in wanted.settings:
        return None
    settings = f"sampling.prompts={arm.config.sampling.prompts * size}+sampling.group_size=1"
    return (
        f"{arm.label} is made to ask each prompt once, and sampling.group_size for all is {size}, so here it asks {size} times: "
        f"put {settings} among its settings if that is not what you want."
    )


def choose_reference(asked: str | None, arms: Sequence[Arm]) -> str:
    """The one asked for; else dapo if it takes part, else the first."""
    labels = [arm.label for arm in arms]
    if asked is not None and asked not in labels:
        raise ConfigError(f"reference {shortened(asked)} is not among the recipes; {suggest(asked, labels)}")
    return asked or ("dapo" if "dapo" in labels else labels[0])

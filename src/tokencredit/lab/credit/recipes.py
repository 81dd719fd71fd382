"""Who is compared: recipes by name or file, the baseline, the control, and what is left out with the reason."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokencredit.config import DeltaCredit, Recipe, UniformCredit
from tokencredit.config.messages import shortened
from tokencredit.config.recipe import varied
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.config.syntax import as_layer, read_recipe
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError

BASELINE = "grpo"
CONTROL = "grpo x random 0.8-1.2"
"""A/A: the baseline's credit times noise that knows nothing. Whatever it gains or loses is chance."""
ORACLE = "oracle A*"
TWIN = "{} with uniform credit"


class Contender(NamedTuple):
    name: str
    recipe: Recipe
    twin: str | None
    """The same recipe with every token of a response alike; None where it is that already."""

    def on(self, config: TrainConfig) -> TrainConfig:
        """The fixed policy and task under this recipe's stages."""
        return config.model_copy(update={field: getattr(self.recipe, field) for field in Recipe.model_fields})


class LeftOut(NamedTuple):
    recipe: str
    part: str
    why: str


class Field(NamedTuple):
    contenders: list[Contender]
    left_out: list[LeftOut]


def find_contenders(names: str | None) -> Field:
    """Recipes (with settings of their own or not) and config files; all recipes by default. Baseline and control are always there."""
    asked = list(RECIPES) if names is None else [name.strip() for name in names.split(",") if name.strip()]
    if not asked:
        raise ConfigError("recipes is empty; name at least one, or leave it out for all")
    found: dict[str, Recipe] = {
        BASELINE: RECIPES[BASELINE].recipe,
        CONTROL: varied(RECIPES[BASELINE].recipe, credit=DeltaCredit(score="random")),
    }
    left_out: list[LeftOut] = []
    for name in asked:
        recipe = _recipe(name)
        if recipe.filter_groups:
            why = "samples until every group is mixed; on groups that are given it does what the same recipe without filter_groups does"
            left_out.append(LeftOut(name, "all", why))
        elif recipe.kl.beta:
            left_out.append(LeftOut(name, "all", "kl.beta is above 0, and the policy is its own reference here; set it to 0"))
        else:
            found[name] = recipe
    return Field([_with_twin(name, recipe, found) for name, recipe in found.items()], left_out)


def _recipe(name: str) -> Recipe:
    if name.endswith(".toml"):
        return resolve([read_toml(Path(name))])
    wanted = read_recipe(name, tuple(Recipe.model_fields))
    if not wanted.settings:
        return RECIPES[wanted.recipe].recipe
    try:
        return resolve([{"recipe": wanted.recipe}, as_layer(wanted.settings)])
    except ConfigError as problem:
        raise ConfigError(f"recipes: {shortened(name)}: {problem}") from None


def _with_twin(name: str, recipe: Recipe, known: dict[str, Recipe]) -> Contender:
    if not recipe.credit.differs_within_response and recipe.credit.type == "uniform":
        return Contender(name, recipe, None)
    stages = {field: getattr(recipe, field) for field in Recipe.model_fields}
    plain = Recipe.model_validate(stages | {"credit": UniformCredit()})
    same = next((other for other, found in known.items() if _stages(found) == _stages(plain)), None)
    return Contender(name, recipe, same or TWIN.format(name))


def _stages(recipe: Recipe) -> dict[str, object]:
    return {field: getattr(recipe, field) for field in Recipe.model_fields}


def twins(contenders: Sequence[Contender]) -> list[Contender]:
    """Those that no contender stands for already."""
    known = {one.name for one in contenders}
    return [
        Contender(one.twin, Recipe.model_validate(_stages(one.recipe) | {"credit": UniformCredit()}), None)
        for one in contenders
        if one.twin is not None and one.twin not in known
    ]

"""Recipes that TRL cannot run, whatever its settings."""

from tokencredit.config import Recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.recipe_source import refuse_sampling


def refuse_recipe(recipe: Recipe) -> None:
    refuse_sampling(recipe, "TRL")
    if recipe.filter_groups:
        raise ConfigError("filter_groups samples replacements for groups without spread, which TRL cannot; set filter_groups to false")

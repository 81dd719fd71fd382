"""A recipe as another engine's user gives it: a name, a TOML file, a mapping of differences, or a Recipe; and what to refuse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tokencredit.config import Recipe
from tokencredit.config.messages import in_words
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import overlay, read_toml
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.pipeline.build import sampled_evidence
from tokencredit.text import nearest

RecipeSource = str | Path | Mapping[str, Any] | Recipe

MUST_SAMPLE = {
    "revisions": "asks the policy to revise failed responses",
    "prefix-values": "continues responses from the middle",
    "greedy-scores": "compares with the policy's greedy response",
}
"""Why evidence of this kind cannot be had from rollouts alone."""


def read_recipe(source: RecipeSource) -> Recipe:
    """`"delta"`, `"my.toml"`, or `{"recipe": "dapo", "credit": {"type": "delta"}}`: a named recipe with differences.

    A file or mapping may hold a recipe's fields only; what the engine decides itself has no place there.
    """
    if isinstance(source, Recipe):
        return _validated({field: getattr(source, field) for field in Recipe.model_fields})
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".toml")):
        source = read_toml(Path(source))
    if not isinstance(source, str | Mapping):
        raise ConfigError(f"recipe is {source!r}; give a name, a TOML file, a mapping of differences or a Recipe")
    asked = {"recipe": source} if isinstance(source, str) else dict(source)
    name = asked.pop("recipe", TrainConfig.model_fields["recipe"].default)
    if not isinstance(name, str) or name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; {nearest(str(name), RECIPES)}")
    for key in (key for key in asked if key not in Recipe.model_fields):
        advice = "set it in the engine" if key in TrainConfig.model_fields else nearest(str(key), Recipe.model_fields)
        raise ConfigError(f"{key!r} is no part of a recipe; {advice}")
    return _validated(overlay(RECIPES[name].recipe.model_dump(exclude_none=True), asked))


def _validated(fields: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(fields)
    except ValidationError as problem:
        raise in_words(problem) from None


def refuse_sampling(recipe: Recipe, engine: str) -> None:
    """Evidence that costs rollouts of its own is sampled by the local engine only."""
    for need in sorted(sampled_evidence(recipe)):
        raise ConfigError(f"the recipe {MUST_SAMPLE[need]}, which {engine} is not asked to do; train it with the local engine")


def refuse_ranks(recipe: Recipe, count: int) -> None:
    """Shards are an imitation of ranks, told apart by row numbers, which mean nothing where rows lie on several ranks."""
    if count > 1 and recipe.credit.type == "delta" and recipe.credit.scope == "shard":
        raise ConfigError(f"credit.scope is 'shard', which cuts the rows of one rank, but there are {count} ranks; use 'batch' or 'group'")

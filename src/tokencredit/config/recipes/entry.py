"""What the table of recipes holds for each name."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tokencredit.config import Recipe


class RecipeEntry(NamedTuple):
    recipe: Recipe
    paper: str
    summary: str
    origins: Mapping[str, str] = {}
    """Where a number comes from, by its path ("objective.clip_high"): every one that departs from its stage's default."""
    caveats: tuple[str, ...] = ()
    """What to know beyond what the chosen stages say themselves."""
    asks_once: bool = False
    """Made for one response to a prompt: a run asks as many prompts as it would have had responses, where nobody says otherwise."""
    optimizer: Mapping[str, Any] = {}
    """What it was tried with, over the task's preset and under files and flags."""


def varied(recipe: Recipe, **choices: object) -> Recipe:
    """The recipe with other choices, validated again as a whole."""
    return Recipe.model_validate({**{field: getattr(recipe, field) for field in Recipe.model_fields}, **choices})

"""A recipe: one method per stage, an optional KL term, an optional importance correction, and its entry in the table of recipes."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from tokencredit.config.advantage import AdvantageChoice, GrpoAdvantage
from tokencredit.config.base import CountOrZero, Frozen
from tokencredit.config.batching import BatchingChoice, ShuffledBatching
from tokencredit.config.compatibility import Stages, incompatibility
from tokencredit.config.credit import CreditChoice, UniformCredit
from tokencredit.config.objective import ObjectiveChoice, PpoClipObjective
from tokencredit.config.shape import Correction, Kl, NoShape, ShapeChoice


class Recipe(Frozen):
    """One method per stage."""

    shape: Annotated[ShapeChoice, Field(discriminator="type")] = NoShape()
    advantage: Annotated[AdvantageChoice, Field(discriminator="type")] = GrpoAdvantage()
    credit: Annotated[CreditChoice, Field(discriminator="type")] = UniformCredit()
    objective: Annotated[ObjectiveChoice, Field(discriminator="type")] = PpoClipObjective()
    batching: Annotated[BatchingChoice, Field(discriminator="type")] = ShuffledBatching()
    kl: Kl = Kl()
    correction: Correction = Correction()
    filter_groups: bool = False
    """Dynamic sampling: replace groups whose scores are all equal."""
    filter_retries: CountOrZero = 4
    """At most this many extra sampling rounds while groups are missing."""

    @model_validator(mode="after")
    def _makes_sense(self) -> "Recipe":
        reason = incompatibility(Stages(self.shape, self.advantage, self.credit, self.objective, self.batching, self.kl, self.correction))
        if reason is not None:
            raise ValueError(reason)
        return self


class RecipeEntry(NamedTuple):
    recipe: Recipe
    paper: str
    summary: str
    origins: Mapping[str, str] = {}
    """Dotted field ("objective.clip_high") -> origin of its value, for every field that differs from the default of its method."""
    caveats: tuple[str, ...] = ()
    """Caveats in addition to those of the chosen methods."""
    asks_once: bool = False
    """Designed for one response per prompt. Unless the user sets the layout, a run samples a single response to each prompt, and as many
    prompts as the batch would have had responses."""
    optimizer: Mapping[str, Any] = {}
    """Optimizer settings it was tested with. They override the task's preset; files and flags override them."""


def varied(recipe: Recipe, **choices: object) -> Recipe:
    """A copy of the recipe with other methods, validated again."""
    return Recipe.model_validate({**{field: getattr(recipe, field) for field in Recipe.model_fields}, **choices})

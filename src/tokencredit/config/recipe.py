"""A recipe: one choice per stage, and the terms that stand beside them.

What the table of recipes holds for each name.
"""

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
    """One choice per stage."""

    shape: Annotated[ShapeChoice, Field(discriminator="type")] = NoShape()
    advantage: Annotated[AdvantageChoice, Field(discriminator="type")] = GrpoAdvantage()
    credit: Annotated[CreditChoice, Field(discriminator="type")] = UniformCredit()
    objective: Annotated[ObjectiveChoice, Field(discriminator="type")] = PpoClipObjective()
    batching: Annotated[BatchingChoice, Field(discriminator="type")] = ShuffledBatching()
    kl: Kl = Kl()
    correction: Correction = Correction()
    filter_groups: bool = False
    """Dynamic sampling: replace groups whose scores are all alike."""
    filter_retries: CountOrZero = 4
    """Extra sampling rounds at most while groups are missing."""

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

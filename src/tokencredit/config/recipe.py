"""A recipe: one choice per stage, and the terms that stand beside them."""

from typing import Annotated

from pydantic import Field, model_validator

from tokencredit.config.advantage import AdvantageChoice, GrpoAdvantage
from tokencredit.config.base import CountOrZero, Frozen
from tokencredit.config.batching import BatchingChoice, ShuffledBatching
from tokencredit.config.compatibility import Stages, senseless
from tokencredit.config.credit import CreditChoice, UniformCredit
from tokencredit.config.objective import ObjectiveChoice, PpoClipObjective
from tokencredit.config.shape import NoShape, ShapeChoice
from tokencredit.config.terms import Correction, Kl


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
        reason = senseless(Stages(self.shape, self.advantage, self.credit, self.objective, self.batching, self.kl, self.correction))
        if reason is not None:
            raise ValueError(reason)
        return self

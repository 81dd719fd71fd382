"""A recipe: one choice per stage, and the terms that stand beside them."""

from typing import Annotated

from pydantic import Field, model_validator

from tokencredit.stages.advantage import AdvantageChoice, GrpoAdvantage
from tokencredit.stages.base import CountOrZero, Frozen
from tokencredit.stages.batching import BatchingChoice, ShuffledBatching
from tokencredit.stages.credit import CreditChoice, UniformCredit
from tokencredit.stages.objective import ObjectiveChoice, PpoClipObjective
from tokencredit.stages.pairings import Stages, senseless
from tokencredit.stages.shape import NoShape, ShapeChoice
from tokencredit.stages.terms import Correction, Kl


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

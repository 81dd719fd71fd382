"""Which task is trained on, and its dials. Imports no torch; `tasks/` holds what a task does."""

from typing import Annotated, Literal

from pydantic import Field

from tokencredit.stages import Frozen, Share


class StepsTask(Frozen):
    """Chains of additions and subtractions mod 10, worked out on a scratchpad."""

    type: Literal["steps"] = "steps"
    operations: Annotated[int, Field(ge=1, le=20)] = 4
    """Operations in a chain."""
    subtract_share: Share = 0.5
    """Share of subtractions, where the base errs most."""


class CotAddTask(Frozen):
    """Addition, answered directly or after a scratchpad that RL discovers."""

    type: Literal["cotadd"] = "cotadd"
    digits: Annotated[int, Field(ge=1, le=12)] = 4
    """Digits of each term."""


TaskChoice = Annotated[StepsTask | CotAddTask, Field(discriminator="type")]

"""Choices of the reward before comparison."""

from typing import Annotated, Literal

from tokencredit.config.base import NOTE, READING, Choice, Count, NonNegative, Origin, PositiveShare, Share


class NoShape(Choice):
    """The verifier's score as it is."""

    formula = "R_i = score_i"

    type: Literal["none"] = "none"


class OverlongShape(Choice):
    """DAPO's soft penalty near the length limit."""

    formula = "R_i = score_i + min(0, -factor (T_i - (L - b)) / b),  b = buffer x L,  L the length limit"

    type: Literal["overlong"] = "overlong"
    buffer: Annotated[PositiveShare, Origin("public DAPO scripts: 4096 of 20480 tokens")] = 0.2
    """Share of the length limit over which the penalty grows."""
    factor: Annotated[NonNegative, Origin("public DAPO scripts")] = 1.0
    """Penalty at the limit."""


class IbpoShape(Choice):
    """IBPO: a failed response that the policy repairs when shown a sibling is worth more than a hopeless one."""

    formula = "R_i = score_i + weight x repair_value x (share of i's references whose revision is right)   if i failed, else score_i"
    caveats = (
        "reading: the bonus is the mean over references; revisions are never trained on",
        "reading: references are correct siblings first, then other failures; none are repeated",
        "revisions are sampled from the same policy and counted in rollouts used",
    )
    sampler_knobs = ("references", "prefer_correct")

    type: Literal["ibpo"] = "ibpo"
    weight: Annotated[NonNegative, NOTE] = 0.6
    """Lambda: weight of the repair score in the reward."""
    repair_value: Annotated[Share, NOTE] = 0.5
    """Rho: what one successful repair is worth."""
    references: Annotated[Count, Origin("reading: K - 1 with K = 3; the paper's K was not found")] = 2
    """Siblings each failed response is compared with."""
    prefer_correct: Annotated[bool, NOTE] = True
    """Take correct siblings as references before other failures."""
    correct_above: Annotated[Share, READING] = 0.5
    """A score above this is a success."""


ShapeChoice = NoShape | OverlongShape | IbpoShape

"""What a grader said of one response."""

import math
from typing import NamedTuple


class Verdict(NamedTuple):
    score: float
    """NaN: could not be graded, which is never the same as wrong."""
    reason: str | None = None
    """Why it could not be graded."""


def ungraded(reason: str) -> Verdict:
    return Verdict(math.nan, reason)

"""By which kind of failure credit is lost: on tokens that decided nothing, against the truth, or not given where it was due."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.lab.credit.agreement import share
from tokencredit.lab.credit.intervals import Bounded, bounded

STANDARD_ERRORS = 2.0
"""A token whose |A*| is less than so many of its standard errors is not told apart from one that decided nothing."""


class Kinds(NamedTuple):
    """Every token is of exactly one kind."""

    undecided: Bool[Tensor, "*tok"]
    """A* is not told apart from 0."""
    against: Bool[Tensor, "*tok"]
    """Credit has the other sign than A*."""
    agreeing: Bool[Tensor, "*tok"]
    """Credit has the sign of A*."""
    missed: Bool[Tensor, "*tok"]
    """A* is told apart from 0, and there is no credit."""


class Failure(NamedTuple):
    """Shares by kind of token: the first three of all |credit|, so that they sum to 1; the last of the |A*| that is told apart from 0."""

    undecided: Bounded
    against: Bounded
    agreeing: Bounded
    missed: Bounded


def told_apart(truth: Float[Tensor, "*tok"], variance: Float[Tensor, "*tok"]) -> Bool[Tensor, "*tok"]:
    """From 0. Nearly certain tokens are not measured, A* and its error are both 0 there: they decided nothing either."""
    return (truth != 0) & (truth.abs() >= STANDARD_ERRORS * variance.sqrt())


def kinds(credit: Float[Tensor, "*tok"], truth: Float[Tensor, "*tok"], variance: Float[Tensor, "*tok"]) -> Kinds:
    decided, same, none = told_apart(truth, variance), credit.sign() == truth.sign(), credit == 0
    return Kinds(~decided, decided & ~same & ~none, decided & same, decided & none)


def failure(
    credit: Float[Tensor, " tok"],
    truth: Float[Tensor, " tok"],
    variance: Float[Tensor, " tok"],
    chosen: Bool[Tensor, " tok"],
    group: Int[Tensor, " tok"],
    times: Float[Tensor, "draw grp"],
) -> Failure:
    """Of the `chosen` tokens alone; `group` and `times` as in agreement. NaN where there is no credit, or nothing was decided."""
    kind = kinds(credit, truth, variance)
    size, due = credit.abs() * chosen, truth.abs() * (chosen & ~kind.undecided)
    weights = Kinds(undecided=size, against=size, agreeing=size, missed=due)
    return Failure(*(bounded(share(weight, inside, group, times)) for weight, inside in zip(weights, kind, strict=True)))

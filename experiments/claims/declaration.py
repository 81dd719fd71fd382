"""What a claim is made of. Everything that decides a verdict is written down before anything is trained."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Expected = Literal["more", "less", "no worse"]
"""The interval of the contrast lies above 0, below 0, or above minus the margin."""


class Setting(NamedTuple):
    """Conditions that all recipes of a comparison share."""

    name: str
    flags: str
    """As for `tokencredit train`."""
    models: tuple[str, ...]
    seconds: float
    """Of one core for one run, roughly: for planning only."""


class Test(NamedTuple):
    """One number with a direction: a weighted sum of a measure over recipes, seed by seed."""

    what: str
    setting: str
    weights: dict[str, float]
    """Recipe, as `tokencredit compare` writes it -> weight; +1 and -1 are a plain difference."""
    measure: str
    expected: Expected
    decides: bool = True
    """Or is only told."""
    margin: float = 0.0
    """For "no worse"."""


class Claim(NamedTuple):
    said: str
    """What the paper says, in our words."""
    reproduced_if: str
    refuted_if: str
    tests: tuple[Test, ...]


class Study(NamedTuple):
    """Claims of one paper that are told together, from the same runs."""

    name: str
    paper: str
    arms: dict[str, tuple[str, ...]]
    """Setting -> recipes."""
    columns: tuple[str, ...]
    """Measures told of every recipe by itself."""
    claims: tuple[Claim, ...]
    names: Mapping[str, str] = MappingProxyType({})
    """Short names of recipes for the tables."""
    remarks: tuple[str, ...] = ()
    not_testable: tuple[str, ...] = ()
    """What of the paper cannot be tested here, and why."""
    threshold: float = 0.8
    """Held-out accuracy that rollouts are counted to."""


def against(
    what: str, setting: str, recipe: str, other: str, measure: str, expected: Expected, *, decides: bool = True, margin: float = 0.0
) -> Test:
    """Recipe minus other."""
    return Test(what, setting, {recipe: 1.0, other: -1.0}, measure, expected, decides, margin)

"""Two recipes on the same base and seed, measure by measure: the difference, or the log of a ratio of rollouts."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tokencredit.lab.compare.curves import area, rollouts_to
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.statistics import Bounds

Pair = tuple[Row, Row]
"""The recipe's run, and the reference's."""


class Measure(NamedTuple):
    title: str
    what: str
    ratio: bool
    """A log ratio of rollouts, shown as a factor; less is better. Else a difference."""
    percent: bool = False


MEASURES: dict[str, Measure] = {
    "area": Measure("curve area", "mean held-out accuracy over the rollouts that all runs of a base cover", False, True),
    "final": Measure("final accuracy", "sampled held-out accuracy (pass@1) after the run", False, True),
    "to_threshold": Measure("rollouts to threshold", "rollouts until held-out accuracy first reaches the threshold", True),
    "to_final": Measure(
        "rollouts to the reference's final",
        "until the mean curve reaches the reference's last accuracy, over what that one took",
        True,
    ),
    "to_final_of_all": Measure(
        "the same, over all rollouts of the reference",
        "until the mean curve reaches the reference's last accuracy, over all that the reference used",
        True,
    ),
    "pass_at_k": Measure("pass@k", "share of held-out problems that the best of k samples solves, after the run", False, True),
    "greedy": Measure("greedy accuracy", "of the most likely response, after the run", False, True),
    "entropy": Measure("end entropy", "nats per token in the last training batch", False),
    "rollouts": Measure("rollouts used", "everything that was sampled for training, revisions and continuations included", True),
}

BY_MEAN_CURVES = ("to_final", "to_final_of_all")
"""Measures of all seeds together; the others are taken run by run."""

TOLD = ("area", "final", "to_threshold", "to_final", "pass_at_k", "entropy")
"""Those of the table; the JSON has all."""

RANKED = ("area", "final", "to_threshold")
"""Measures with a probability of improvement."""


def bounds_to(row: Row, level: float) -> Bounds:
    """Rollouts until a level is reached; a run that never got there needs more than it used."""
    reached = rollouts_to(row["curve"], level)
    return Bounds(row["rollouts"], math.inf) if reached is None else Bounds(reached, reached)


def values(name: str, row: Row, *, horizon: float, threshold: float) -> Bounds:
    """What a run shows of a measure."""
    if name == "to_threshold":
        return bounds_to(row, threshold)
    found = {
        "area": lambda: area(row["curve"], horizon),
        "final": lambda: row["after"]["sampled"],
        "pass_at_k": lambda: row["after"]["pass_at_k"],
        "greedy": lambda: row["after"]["greedy"],
        "entropy": lambda: row["entropy"],
        "rollouts": lambda: row["rollouts"],
    }[name]()
    found = math.nan if found is None else float(found)
    return Bounds(found, found)


def difference(name: str, ours: Row, theirs: Row, *, horizon: float, threshold: float) -> Bounds | None:
    """None where there is none: an entropy that was never measured, a level that a base has before any training."""
    one, other = (values(name, row, horizon=horizon, threshold=threshold) for row in (ours, theirs))
    if any(math.isnan(value) for value in (*one, *other)):
        return None
    if not MEASURES[name].ratio:
        return Bounds(one.low - other.high, one.high - other.low)
    if one.low <= 0 or other.low <= 0:
        return None
    low = -math.inf if math.isinf(other.high) else math.log(one.low / other.high)
    high = math.inf if math.isinf(one.high) else math.log(one.high / other.low)
    return Bounds(low, high)


def pair_up(rows: Sequence[Row], recipe: str, reference: str) -> dict[str, list[Pair]]:
    """Base -> pairs of one seed, in the order of seeds; reported runs only."""
    by_place: dict[str, dict[tuple[str, int], Row]] = {recipe: {}, reference: {}}
    for row in rows:
        if row["recipe"] in by_place and not row["tuning"]:
            by_place[row["recipe"]][row["base"], row["seed"]] = row
    ours, theirs = by_place[recipe], by_place[reference]
    found: dict[str, list[Pair]] = {}
    for base, seed in sorted(ours.keys() & theirs.keys(), key=lambda place: place[1]):
        found.setdefault(base, []).append((ours[base, seed], theirs[base, seed]))
    return found


def differences(
    name: str, pairs: Mapping[str, Sequence[Pair]], *, horizons: Mapping[str, float], threshold: float
) -> dict[str, list[Bounds]]:
    """Base -> differences that could be taken."""
    return {
        base: [
            found for one, other in own if (found := difference(name, one, other, horizon=horizons[base], threshold=threshold)) is not None
        ]
        for base, own in pairs.items()
    }

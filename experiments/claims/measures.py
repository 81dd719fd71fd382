"""What a row shows of a measure. A number, or half a line where a run never got there."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from claims.harvest import known_mean
from tokencredit.lab.compare.pairs import accuracy_at, values
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.statistics import Bounds


class Measure(NamedTuple):
    title: str
    kind: str
    """percent: told in points; ratio: a log ratio, told as a factor; number: as it is."""


MEASURES: dict[str, Measure] = {
    "area": Measure("curve area", "percent"),
    "final": Measure("final accuracy", "percent"),
    "equal_rollouts": Measure("accuracy at equal rollouts", "percent"),
    "pass_at_k": Measure("pass@k after", "percent"),
    "pass_at_4": Measure("pass@4, mean over the run", "percent"),
    "to_threshold": Measure("rollouts to threshold", "ratio"),
    "rollouts": Measure("rollouts", "ratio"),
    "entropy": Measure("end entropy", "number"),
    "mean_entropy": Measure("mean entropy", "number"),
    "jitter": Measure("jitter", "percent"),
    "silenced": Measure("tokens silenced", "percent"),
    "tax_format": Measure("tax, format", "percent"),
    "tax_any": Measure("tax, any", "percent"),
    "moved": Measure("KL moved per token", "number"),
    "drift_ratio": Measure("drift ratio", "number"),
    "drift_equal": Measure("drift, nats", "number"),
    "moved_format": Measure("KL on format", "percent"),
    "moved_decisive": Measure("KL on decisive", "percent"),
    "first_moved_format": Measure("KL on format, first look", "percent"),
    "first_moved_decisive": Measure("KL on decisive, first look", "percent"),
}
CEILING = {"final", "pass_at_k", "pass_at_4", "equal_rollouts"}
"""Shares of problems solved: where all arms are at the top there is nothing to tell."""
OF_ROWS = {"mean_entropy", "silenced", "pass_at_4", "jitter"}
OF_LOOKS = {"tax_format", "tax_any", "moved", "drift_ratio", "drift_equal", "moved_format", "moved_decisive"}
FIRST = "first_"


def measured(name: str, row: Row, *, horizon: float, threshold: float) -> Bounds | None:
    """None where the run has no such number."""
    if name in OF_ROWS:
        return _point(row[name])
    if name in OF_LOOKS:
        return _point(known_mean(look[name] for look in row["looks"]))
    if name.startswith(FIRST):
        first: Mapping[str, float | None] = next(iter(row["looks"]), {})
        return _point(first.get(name.removeprefix(FIRST)))
    if name == "equal_rollouts":
        return _point(accuracy_at(row["curve"], horizon))
    found = values(name, row, horizon=horizon, threshold=threshold)
    return None if math.isnan(found.low) else found


def _point(value: float | None) -> Bounds | None:
    return None if value is None or math.isnan(value) else Bounds(value, value)

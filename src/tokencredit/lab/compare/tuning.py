"""The best rate of each recipe on each base, by the area under its tuning curves.

Which of many recipes go on to the seeds that are reported: the best by tuning, and those that always do.
"""

from collections.abc import Collection, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from tokencredit.lab.compare.curves import area, common_horizon
from tokencredit.lab.compare.design import Design, Key
from tokencredit.lab.compare.results import Row


class Tuned(NamedTuple):
    recipe: str
    base: str
    areas: Mapping[float, float | None]
    """Rate -> mean area over tuning seeds; None where a run is missing: a rate at which training broke is not chosen."""
    best: float | None
    """None while runs are still to come, and where every rate broke."""
    settled: bool
    """Whether every rate was tried on every tuning seed."""

    @property
    def at_edge(self) -> bool:
        return self.best in (min(self.areas), max(self.areas))

    def to_json(self) -> dict[str, Any]:
        areas = [{"rate": rate, "area": found} for rate, found in self.areas.items()]
        return {"recipe": self.recipe, "base": self.base, "areas": areas, "best": self.best, "at_edge": self.at_edge}


def tune(design: Design, rows: Sequence[Row], failed: Collection[Key]) -> list[Tuned]:
    """The first of equals. Areas of one recipe on one base are over the rollouts that all of its tuning runs cover."""
    found = []
    for base in design.bases:
        for arm in design.arms:
            own = [row for row in rows if row["tuning"] and (row["recipe"], row["base"]) == (arm.label, base)]
            curves = {(row["rate"], row["seed"]): row["curve"] for row in own}
            horizon = common_horizon(list(curves.values())) if curves else 0.0
            areas: dict[float, float | None] = {}
            for rate in design.rates:
                keys = [(rate, seed) for seed in design.tuning_seeds]
                areas[rate] = mean(area(curves[key], horizon) for key in keys) if all(key in curves for key in keys) else None
            known = {*curves, *((rate, seed) for recipe, place, rate, seed in failed if (recipe, place) == (arm.label, base))}
            settled = all((rate, seed) in known for rate in design.rates for seed in design.tuning_seeds)
            usable = {rate: value for rate, value in areas.items() if value is not None}
            best = max(usable, key=lambda rate: usable[rate]) if usable and settled else None
            found.append(Tuned(arm.label, base, areas, best, settled))
    return found


def best_rates(tuned: Sequence[Tuned]) -> dict[tuple[str, str], float]:
    return {(one.recipe, one.base): one.best for one in tuned if one.best is not None}


class Standing(NamedTuple):
    recipe: str
    area: float | None
    """At the best rate of each base, in the mean over tuning seeds and bases; None where on one base every rate broke."""
    goes_on: bool

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def standings(design: Design, rows: Sequence[Row], tuned: Sequence[Tuned]) -> list[Standing]:
    """Best first, equals as they were named; nothing where all go on, or while a rate is still being tried.

    Areas are over the rollouts that all tuning runs of a base cover, so that recipes can be compared.
    """
    if design.finalists is None or not all(one.settled for one in tuned):
        return []
    own = [row for row in rows if row["tuning"]]
    horizons = {base: common_horizon([row["curve"] for row in own if row["base"] == base]) for base in {row["base"] for row in own}}
    best = {(one.recipe, one.base): one.best for one in tuned}
    found = {arm.label: _mean_area(arm.label, own, best, horizons) for arm in design.arms}
    ranked = sorted(found, key=lambda recipe: -1.0 if (value := found[recipe]) is None else value, reverse=True)
    chosen = [recipe for recipe in ranked if recipe not in design.seeded and found[recipe] is not None][: design.finalists]
    return [Standing(recipe, found[recipe], recipe in design.seeded or recipe in chosen) for recipe in ranked]


def going_on(standing: Sequence[Standing]) -> Collection[str] | None:
    """None: all."""
    return {one.recipe for one in standing if one.goes_on} if standing else None


def _mean_area(
    recipe: str, rows: Sequence[Row], best: Mapping[tuple[str, str], float | None], horizons: Mapping[str, float]
) -> float | None:
    by_base = []
    for base, horizon in horizons.items():
        rate = best.get((recipe, base))
        curves = [row["curve"] for row in rows if (row["recipe"], row["base"], row["rate"]) == (recipe, base, rate)]
        if rate is None or not curves:
            return None
        by_base.append(mean(area(curve, horizon) for curve in curves))
    return mean(by_base) if by_base else None

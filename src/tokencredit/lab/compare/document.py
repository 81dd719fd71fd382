"""The JSON of a comparison: tuning results, the summary, caveats, and every row they are computed from."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.lab.compare.design import Design, Key
from tokencredit.lab.compare.pairs import area, common_horizon
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.runner import Failure
from tokencredit.lab.compare.summary import caveats, summarize
from tokencredit.storage.atomic import atomic_write
from tokencredit.text import suggest


class Tuned(NamedTuple):
    recipe: str
    base: str
    areas: Mapping[float, float | None]
    """Rate -> mean curve area over tuning seeds; None where a run is missing, so a rate at which training failed is never chosen."""
    best: float | None
    """The rate with the largest area; None while runs are pending, or if training failed at every rate."""
    settled: bool
    """Whether every rate has finished or failed on every tuning seed."""

    @property
    def at_edge(self) -> bool:
        return self.best in (min(self.areas), max(self.areas))

    def to_json(self) -> dict[str, Any]:
        areas = [{"rate": rate, "area": found} for rate, found in self.areas.items()]
        return {"recipe": self.recipe, "base": self.base, "areas": areas, "best": self.best, "at_edge": self.at_edge}


def tune(design: Design, rows: Sequence[Row], failed: Collection[Key]) -> list[Tuned]:
    """Choose the rate with the largest area under its tuning curves, for each recipe and base; the first of equals.

    Areas of one recipe on one base cover the rollouts that all of its tuning runs share.
    """
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
    """Mean over tuning seeds and bases at the best rate of each base; None if training failed at every rate on some base."""
    goes_on: bool

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def standings(design: Design, rows: Sequence[Row], tuned: Sequence[Tuned]) -> list[Standing]:
    """Recipes ranked by tuning, best first, ties in the order of the user; empty if all advance, or while tuning is unfinished.

    Areas cover the rollouts that all tuning runs of a base share, so recipes are comparable.
    """
    if design.finalists is None or not all(one.settled for one in tuned):
        return []
    own = [row for row in rows if row["tuning"]]
    horizons = {base: common_horizon([row["curve"] for row in own if row["base"] == base]) for base in {row["base"] for row in own}}
    best = {(one.recipe, one.base): one.best for one in tuned}
    found = {arm.label: _mean_area(arm.label, own, best, horizons) for arm in design.arms}
    ranked = sorted(found, key=lambda recipe: -1.0 if (value := found[recipe]) is None else value, reverse=True)
    chosen = [recipe for recipe in ranked if recipe not in design.always_included and found[recipe] is not None][: design.finalists]
    return [Standing(recipe, found[recipe], recipe in design.always_included or recipe in chosen) for recipe in ranked]


def advancing_recipes(standing: Sequence[Standing]) -> Collection[str] | None:
    """Recipes that run on the reported seeds; None: all."""
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


JSON_FILE, PAGE_FILE = "comparison.json", "comparison.html"
THRESHOLD = 0.8
KIND = "tokencredit comparison"
PARTS = (
    "command",
    "commit",
    "uncommitted",
    "python",
    "platform",
    "packages",
    "design",
    "settings",
    "remarks",
    "missing",
    "failed",
    "tuning",
    "runs",
)


def check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {threshold:g}; it is an accuracy, above 0 and at most 1")


def make_document(
    design: Design,
    rows: Sequence[Row],
    failures: Sequence[Failure],
    *,
    missing: int,
    threshold: float,
    settings: Mapping[str, Any],
    remarks: Sequence[str],
    made_by: Mapping[str, Any],
) -> dict[str, Any]:
    """`made_by`: the command, the commit and the versions; `settings`: those shared by all recipes and those that differ."""
    tuned = tune(design, rows, {failure.run.key for failure in failures}) if design.tunes else []
    document = {
        "kind": KIND,
        **made_by,
        "design": {
            "recipes": [arm.label for arm in design.arms],
            "controls": [arm.label for arm in design.arms if arm.control],
            "reference": design.reference,
            "bases": dict(design.bases),
            "seeds": list(design.seeds),
            "rates": list(design.rates),
            "tuning_seeds": list(design.tuning_seeds),
            "finalists": design.finalists,
            "always": list(design.always),
            "threshold": threshold,
        },
        "settings": dict(settings),
        "remarks": list(remarks),
        "missing": missing,
        "failed": [failure.to_json() for failure in failures],
        "tuning": [one.to_json() for one in tuned],
        "standings": [one.to_json() for one in standings(design, rows, tuned)],
        "runs": list(rows),
    }
    return concluded(document)


def concluded(document: dict[str, Any]) -> dict[str, Any]:
    """Add the summary and the caveats, computed from the rows."""
    # Older files have no standings: all of their recipes advanced.
    document = {"standings": [], **document}
    design = document["design"]
    left = {one["recipe"] for one in document["standings"] if not one["goes_on"]}
    recipes = [recipe for recipe in design["recipes"] if recipe not in left]
    summary = summarize(
        document["runs"],
        recipes=recipes,
        controls=design["controls"],
        bases=list(design["bases"]),
        reference=design["reference"],
        threshold=design["threshold"],
    )
    return {**document, "summary": summary, "notes": caveats(document["runs"], summary, {**design, **document, "recipes": recipes})}


def read_document(out: Path, *, threshold: float | None = None, reference: str | None = None) -> dict[str, Any]:
    """Read a stored comparison and recompute its summary, optionally with another threshold or reference."""
    path = out / JSON_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["kind"] != KIND:
            raise ValueError(document["kind"])
        if absent := [name for name in PARTS if name not in document]:
            raise KeyError(f"without {', '.join(absent)}")
        design = document["design"]
        if reference is not None and reference not in design["recipes"]:
            raise ConfigError(f"reference {reference!r} is not among the recipes; {suggest(reference, design['recipes'])}")
        design |= {"threshold": design["threshold"] if threshold is None else threshold, "reference": reference or design["reference"]}
        return concluded(document)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"out {out} holds no comparison: there is no {JSON_FILE}; name --recipes to make one") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
        raise ConfigError(f"{path} cannot be read as a comparison: {type(problem).__name__} {problem}") from None


def write_document(document: Mapping[str, Any], out: Path) -> None:
    atomic_write(out / JSON_FILE, json.dumps(document, indent=1, allow_nan=False) + "\n")

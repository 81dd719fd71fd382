"""Rows of runs -> what they say: every recipe by itself, and beside the reference. Plain JSON; None stands for what has no bound."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np

from tokencredit.lab.compare.curves import common_horizon, on_grid, reaching
from tokencredit.lab.compare.pairs import BY_MEAN_CURVES, MEASURES, RANKED, Pair, bounds_to, differences, pair_up, values
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.statistics import UNKNOWN, Bounds, Improvement, Intervals, Paired, improvement, outcomes, paired, seeds_needed
from tokencredit.stats import critical

CLAIM = 0.1
"""The gain that is asked about beside the one that was seen."""


def summarize(
    rows: Sequence[Row], *, recipes: Sequence[str], controls: Sequence[str], bases: Sequence[str], reference: str, threshold: float
) -> dict[str, Any]:
    """Reported runs only: what rates were tuned on says nothing here."""
    reported = [row for row in rows if not row["tuning"]]
    by_base = {base: [row for row in reported if row["base"] == base] for base in bases}
    horizons = {base: common_horizon([row["curve"] for row in own]) for base, own in by_base.items() if own}
    others = [recipe for recipe in recipes if recipe != reference]
    claims = [recipe for recipe in others if recipe not in controls]
    return {
        "reference": reference,
        "threshold": threshold,
        "horizons": horizons,
        "measures": {name: measure._asdict() for name, measure in MEASURES.items()},
        "recipes": [
            _by_itself([row for row in own if row["recipe"] == recipe], recipe, base, horizons[base], threshold, recipe in controls)
            for base, own in by_base.items()
            for recipe in recipes
            if any(row["recipe"] == recipe for row in own)
        ],
        "comparisons": [_beside(reported, recipe, reference, horizons, threshold, len(claims), recipe in controls) for recipe in others],
        "curves": {base: _curves(own, recipes) for base, own in by_base.items() if own},
    }


def _by_itself(rows: Sequence[Row], recipe: str, base: str, horizon: float, threshold: float, control: bool) -> dict[str, Any]:
    """Mean and standard deviation over seeds. Rollouts to the threshold are a median, runs that never got there counted as last."""
    reached = sorted(bounds_to(row, threshold).high for row in rows)
    middle = (reached[(len(reached) - 1) // 2] + reached[len(reached) // 2]) / 2
    told: dict[str, Any] = {"recipe": recipe, "base": base, "control": control, "runs": len(rows), "k": rows[0]["after"]["k"]}
    told["rates"] = sorted({row["rate"] for row in rows})
    told["before"] = _spread([row["before"]["sampled"] for row in rows])
    for name in ("area", "final", "greedy", "pass_at_k", "entropy", "rollouts"):
        told[name] = _spread([values(name, row, horizon=horizon, threshold=threshold).low for row in rows])
    told["length"] = {when: _spread([row[when]["length"] for row in rows]) for when in ("before", "after")}
    told["to_threshold"] = {"median": _number(middle), "reached": sum(math.isfinite(one) for one in reached)}
    told["seconds"] = _spread([row["seconds"] for row in rows])
    return told


def _spread(found: Sequence[float]) -> dict[str, float | None]:
    known = [value for value in found if not math.isnan(value)]
    return {"mean": mean(known) if known else None, "sd": stdev(known) if len(known) > 1 else None}


def _beside(
    rows: Sequence[Row], recipe: str, reference: str, horizons: Mapping[str, float], threshold: float, claims: int, control: bool
) -> dict[str, Any]:
    pairs = pair_up(rows, recipe, reference)
    overall = _measured(pairs, horizons, threshold, claims)
    return {
        "recipe": recipe,
        "control": control,
        "pairs": sum(map(len, pairs.values())),
        "overall": overall,
        "by_base": {
            base: overall if len(pairs) == 1 else _measured({base: own}, horizons, threshold, claims) for base, own in pairs.items()
        },
    }


def _measured(pairs: Mapping[str, Sequence[Pair]], horizons: Mapping[str, float], threshold: float, claims: int) -> dict[str, Any]:
    found = {name: _reached_json(pairs, over_all=name == "to_final_of_all") for name in BY_MEAN_CURVES}
    for name in MEASURES:
        if name in BY_MEAN_CURVES:
            continue
        by_base = differences(name, pairs, horizons=horizons, threshold=threshold)
        strata = [own for own in by_base.values() if own]
        statistics = paired(strata)
        told = _paired_json(statistics, claims)
        told["left_out"] = sum(map(len, pairs.values())) - sum(map(len, strata))
        told["never"] = _never(strata)
        told["seeds_needed"] = _needed(name, statistics, len(strata), pairs, horizons)
        if name in RANKED:
            told["improvement"] = _improvement_json(_improvement(name, pairs, horizons, threshold))
        found[name] = told
    return found


def _reached_json(pairs: Mapping[str, Sequence[Pair]], *, over_all: bool) -> dict[str, Any]:
    ours, theirs = ([[pair[side]["curve"] for pair in own] for own in pairs.values()] for side in (0, 1))
    found, count = reaching(ours, theirs, over_all=over_all) if pairs else None, sum(map(len, pairs.values()))
    told = _paired_json(None, 0) | {"left_out": 0 if found else count, "never": _never([]), "seeds_needed": {"tenth": None, "seen": None}}
    if found is None:
        return told
    told["never"]["recipe"] = found.never
    return told | {"pairs": count, "low": _number(found.low), "high": _number(found.high)} | _intervals_json(found.intervals)


def _paired_json(found: Paired | None, claims: int) -> dict[str, Any]:
    if found is None:
        nothing = _intervals_json(Intervals(UNKNOWN, UNKNOWN, 0))
        return {"pairs": 0, "low": None, "high": None, **nothing, "spread": None, "t": None, "bonferroni_t": None}
    freedom = found.intervals.freedom
    return {
        "pairs": found.pairs,
        "low": _number(found.low),
        "high": _number(found.high),
        **_intervals_json(found.intervals),
        "spread": found.spread,
        "t": found.t,
        "bonferroni_t": critical(freedom, 0.05 / max(1, claims)) if freedom else None,
    }


def _intervals_json(found: Intervals) -> dict[str, Any]:
    """The one that is shown, by which way it was taken, and both."""
    return {
        "interval": [_number(end) for end in found.shown],
        "interval_by": found.by,
        "bootstrap_interval": [_number(end) for end in found.bootstrap],
        "t_interval": [_number(end) for end in found.t],
    }


def _never(strata: Sequence[Sequence[Bounds]]) -> dict[str, int]:
    """Pairs of which one run, or both, did not get there."""
    pairs = [pair for stratum in strata for pair in stratum]
    ends = [(math.isinf(pair.high), math.isinf(pair.low)) for pair in pairs]
    return {"recipe": ends.count((True, False)), "reference": ends.count((False, True)), "both": ends.count((True, True))}


def _needed(
    name: str, found: Paired | None, strata: int, pairs: Mapping[str, Sequence[Pair]], horizons: Mapping[str, float]
) -> dict[str, int | None]:
    """Seeds per base for 80 % power at 5 %, two-sided: for a gain of a tenth, and for what was seen."""
    if found is None or found.spread is None:
        return {"tenth": None, "seen": None}
    tenth = math.log(1 - CLAIM)
    if not MEASURES[name].ratio:
        theirs = [(horizons[base], other) for base, own in pairs.items() for _, other in own]
        levels = [values(name, other, horizon=horizon, threshold=0.0).low for horizon, other in theirs]
        tenth = CLAIM * mean(level for level in levels if not math.isnan(level))
    return {
        "tenth": seeds_needed(tenth, found.spread, strata=strata),
        "seen": seeds_needed(found.low, found.spread, strata=strata),
    }


def _improvement(name: str, pairs: Mapping[str, Sequence[Pair]], horizons: Mapping[str, float], threshold: float) -> Improvement | None:
    """Over all runs of one base against each other."""
    wins = []
    for base, own in pairs.items():
        ours, theirs = ([values(name, pair[side], horizon=horizons[base], threshold=threshold) for pair in own] for side in (0, 1))
        wins.append(outcomes(theirs, ours) if MEASURES[name].ratio else outcomes(ours, theirs))
    return improvement(wins)


def _improvement_json(found: Improvement | None) -> dict[str, Any] | None:
    if found is None:
        return None
    told = {"probability": found.probability, "interval": list(found.interval), "wins": found.wins, "pairs": found.pairs}
    return told | {"bootstrap_interval": [_number(end) for end in found.bootstrap]}


def _curves(rows: Sequence[Row], recipes: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and spread over seeds at the same rollouts."""
    found = []
    for recipe in recipes:
        own = [row["curve"] for row in rows if row["recipe"] == recipe]
        if own:
            grid, accuracy = on_grid(own)
            table = np.array(accuracy)
            spread = table.std(0, ddof=1).tolist() if len(own) > 1 else None
            found.append({"recipe": recipe, "runs": len(own), "rollouts": grid, "mean": table.mean(0).tolist(), "sd": spread})
    return found


def _number(value: float) -> float | None:
    """JSON has no word for infinity: None."""
    return value if math.isfinite(value) else None

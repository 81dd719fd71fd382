"""Summarizes the rows of runs as JSON: numbers per recipe, comparisons with the reference, and caveats. None stands for infinity."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import mean, stdev
from typing import Any

import numpy as np

from tokencredit.lab.compare.pairs import (
    BY_MEAN_CURVES,
    MEASURES,
    RANKED,
    TABLE_MEASURES,
    Pair,
    bounds_to,
    common_horizon,
    differences,
    on_grid,
    pair_up,
    rollouts_to_target,
    values,
)
from tokencredit.lab.compare.results import Code, Row, same_code
from tokencredit.lab.compare.statistics import UNKNOWN, Bounds, Improvement, Intervals, Paired, improvement, outcomes, paired, seeds_needed
from tokencredit.stats import critical

CLAIM = 0.1
"""The relative gain for which the summary computes the number of seeds, in addition to the measured gain."""


def summarize(
    rows: Sequence[Row], *, recipes: Sequence[str], controls: Sequence[str], bases: Sequence[str], reference: str, threshold: float
) -> dict[str, Any]:
    """Summarize reported runs only; tuning runs do not count."""
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
            _per_recipe([row for row in own if row["recipe"] == recipe], recipe, base, horizons[base], threshold, recipe in controls)
            for base, own in by_base.items()
            for recipe in recipes
            if any(row["recipe"] == recipe for row in own)
        ],
        "comparisons": [
            _against_reference(reported, recipe, reference, horizons, threshold, len(claims), recipe in controls) for recipe in others
        ],
        "curves": {base: _curves(own, recipes) for base, own in by_base.items() if own},
    }


def _per_recipe(rows: Sequence[Row], recipe: str, base: str, horizon: float, threshold: float, control: bool) -> dict[str, Any]:
    """Mean and standard deviation over seeds. Rollouts to the threshold are a median; runs that never reach it rank last."""
    reached = sorted(bounds_to(row, threshold).high for row in rows)
    middle = (reached[(len(reached) - 1) // 2] + reached[len(reached) // 2]) / 2
    record: dict[str, Any] = {"recipe": recipe, "base": base, "control": control, "runs": len(rows), "k": rows[0]["after"]["k"]}
    record["rates"] = sorted({row["rate"] for row in rows})
    record["before"] = _spread([row["before"]["sampled"] for row in rows])
    for name in ("area", "final", "greedy", "pass_at_k", "entropy", "rollouts"):
        record[name] = _spread([values(name, row, horizon=horizon, threshold=threshold).low for row in rows])
    record["length"] = {when: _spread([row[when]["length"] for row in rows]) for when in ("before", "after")}
    record["to_threshold"] = {"median": _number(middle), "reached": sum(math.isfinite(one) for one in reached)}
    record["seconds"] = _spread([row["seconds"] for row in rows])
    return record


def _spread(found: Sequence[float]) -> dict[str, float | None]:
    known = [value for value in found if not math.isnan(value)]
    return {"mean": mean(known) if known else None, "sd": stdev(known) if len(known) > 1 else None}


def _against_reference(
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
        record = _paired_json(statistics, claims)
        record["left_out"] = sum(map(len, pairs.values())) - sum(map(len, strata))
        record["never"] = _never(strata)
        record["seeds_needed"] = _needed(name, statistics, len(strata), pairs, horizons)
        if name in RANKED:
            record["improvement"] = _improvement_json(_improvement(name, pairs, horizons, threshold))
        found[name] = record
    return found


def _reached_json(pairs: Mapping[str, Sequence[Pair]], *, over_all: bool) -> dict[str, Any]:
    ours, theirs = ([[pair[side]["curve"] for pair in own] for own in pairs.values()] for side in (0, 1))
    found, count = rollouts_to_target(ours, theirs, over_all=over_all) if pairs else None, sum(map(len, pairs.values()))
    record = _paired_json(None, 0) | {"left_out": 0 if found else count, "never": _never([]), "seeds_needed": {"tenth": None, "seen": None}}
    if found is None:
        return record
    record["never"]["recipe"] = found.never
    return record | {"pairs": count, "low": _number(found.low), "high": _number(found.high)} | _intervals_json(found.intervals)


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
    """The interval that is shown, its method, and both intervals."""
    return {
        "interval": [_number(end) for end in found.shown],
        "interval_by": found.by,
        "bootstrap_interval": [_number(end) for end in found.bootstrap],
        "t_interval": [_number(end) for end in found.t],
    }


def _never(strata: Sequence[Sequence[Bounds]]) -> dict[str, int]:
    """The number of pairs in which one run, or both, never reached the target."""
    pairs = [pair for stratum in strata for pair in stratum]
    ends = [(math.isinf(pair.high), math.isinf(pair.low)) for pair in pairs]
    return {"recipe": ends.count((True, False)), "reference": ends.count((False, True)), "both": ends.count((True, True))}


def _needed(
    name: str, found: Paired | None, strata: int, pairs: Mapping[str, Sequence[Pair]], horizons: Mapping[str, float]
) -> dict[str, int | None]:
    """Seeds per base for 80 % power at 5 %, two-sided: for a gain of a tenth, and for the measured gain."""
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
    """Compares every run of the recipe with every run of the reference on the same base."""
    wins = []
    for base, own in pairs.items():
        ours, theirs = ([values(name, pair[side], horizon=horizons[base], threshold=threshold) for pair in own] for side in (0, 1))
        wins.append(outcomes(theirs, ours) if MEASURES[name].ratio else outcomes(ours, theirs))
    return improvement(wins)


def _improvement_json(found: Improvement | None) -> dict[str, Any] | None:
    if found is None:
        return None
    record = {"probability": found.probability, "interval": list(found.interval), "wins": found.wins, "pairs": found.pairs}
    return record | {"bootstrap_interval": [_number(end) for end in found.bootstrap]}


def _curves(rows: Sequence[Row], recipes: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds on a common grid of rollouts."""
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
    """None for infinity, which JSON lacks."""
    return value if math.isfinite(value) else None


MOST_NAMED = 4


def shared_prompts(rows: Sequence[Row], *, recipes: Sequence[str], reference: str, settings: Mapping[str, Any]) -> list[str]:
    """Caveats about the evaluation problems and training prompts that paired runs do not share.

    `rows`: reported runs; `settings`: the shared ones and those of each recipe, as in the JSON.
    """

    def setting(recipe: str, name: str) -> Any:
        return settings["by_recipe"].get(recipe, {}).get(name, settings["common"].get(name))

    return [*_held_out(rows), *_first_prompts(rows, reference, setting), *_sampling_differences(recipes, reference, setting)]


def _held_out(rows: Sequence[Row]) -> list[str]:
    by_place: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        by_place.setdefault((row["base"], row["seed"]), set()).add(row["held_out_sha256"])
    if unlike := [f"{base} seed {seed}" for (base, seed), hashes in by_place.items() if len(hashes) > 1]:
        return [f"Held-out problems differ between recipes for {_few(unlike)}: these runs are not paired."]
    if len({row["held_out_sha256"] for row in rows}) > 1:
        return ["Each seed has its own held-out problems: pairs share them, but the spread over seeds includes the problems."]
    return []


def _first_prompts(rows: Sequence[Row], reference: str, setting: Callable[[str, str], Any]) -> list[str]:
    theirs = {(row["base"], row["seed"]): row["first_prompts_sha256"] for row in rows if row["recipe"] == reference}
    unlike: dict[str, list[str]] = {}
    for row in rows:
        if row["first_prompts_sha256"] != theirs.get((row["base"], row["seed"]), row["first_prompts_sha256"]):
            unlike.setdefault(row["recipe"], []).append(f"{row['base']} seed {row['seed']}")
    theirs_a_step = setting(reference, "sampling.prompts")
    otherwise: dict[int, list[str]] = {}
    found = []
    for recipe, places in unlike.items():
        if (own := setting(recipe, "sampling.prompts")) != theirs_a_step:
            otherwise.setdefault(own, []).append(recipe)
        else:
            found.append(f"{recipe} trained on other first prompts than {reference} on {_few(places)}: these runs are not paired.")
    for prompts, drawing in otherwise.items():
        found.append(
            f"With {prompts} prompts a step, where {reference} draws {theirs_a_step}, pairs do not share training prompts: {_few(drawing)}."
        )
    return found


def _sampling_differences(recipes: Sequence[str], reference: str, setting: Callable[[str, str], Any]) -> list[str]:
    found = []
    if replacing := [recipe for recipe in recipes if setting(recipe, "filter_groups")]:
        found.append(f"Groups with equal scores are replaced (filter_groups, {_few(replacing)}): the replacement prompts are not shared.")

    def differs(recipe: str, name: str) -> bool:
        return setting(recipe, name) != setting(reference, name)

    # A caveat about other prompts covers other group sizes.
    if other := [recipe for recipe in recipes if differs(recipe, "sampling.group_size") and not differs(recipe, "sampling.prompts")]:
        found.append(f"Group sizes differ from {reference}'s ({_few(other)}): prompts are shared, sampled responses are not.")
    return found


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


SAME_BUDGET = 0.01
OTHER_LENGTH = 2.0
"""A change of mean response length by more than this factor is a caveat."""


def caveats(rows: Sequence[Row], summary: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """All caveats. `record`: the comparison without its rows: design, settings, failures, tuning, standings and remarks."""
    reported = [row for row in rows if not row["tuning"]]
    shared = shared_prompts(reported, recipes=record["recipes"], reference=record["reference"], settings=record["settings"])
    found = [*_incomplete(record), *shared, *_budgets(reported, summary), *_code_versions(rows), *record["remarks"]]
    found += [
        *_lengths(summary),
        *_rates(record),
        *_finalists(record),
        *_controls(summary, record),
        *_chance(summary, record),
        *_few_seeds(summary),
    ]
    return found


def _incomplete(record: dict[str, Any]) -> list[str]:
    found = []
    if record["failed"]:
        names = sorted({f"{one['recipe']} on {one['base']} at {one['rate']:g}" for one in record["failed"]})
        found.append(
            f"{len(record['failed'])} runs failed ({'; '.join(names[:6])}): only finished seeds are compared, so a recipe that "
            "fails on hard seeds looks better than it is."
        )
    if record["missing"]:
        found.append(f"{record['missing']} runs are still missing: these numbers will change.")
    return found


def _budgets(rows: Sequence[Row], summary: dict[str, Any]) -> list[str]:
    found = []
    for base, horizon in summary["horizons"].items():
        longest = max(row["rollouts"] for row in rows if row["base"] == base)
        if longest > horizon * (1 + SAME_BUDGET):
            found.append(
                f"On {base} recipes used different numbers of rollouts; the curve area is over the first {horizon:,.0f}, which all "
                "cover, but final accuracy, greedy and pass@k are measured at the end of each run."
            )
    return found


def _lengths(summary: dict[str, Any]) -> list[str]:
    found = []
    for one in summary["recipes"]:
        before, after = one["length"]["before"]["mean"], one["length"]["after"]["mean"]
        if max(before, after) > OTHER_LENGTH * min(before, after):
            words = f"went from {before:,.0f} to {after:,.0f} tokens a response"
            found.append(f"{one['recipe']} on {one['base']} {words}: read its responses.")
    return found


def _code_versions(rows: Sequence[Row]) -> list[str]:
    found = []
    codes = {Code(row["commit"], row["uncommitted"]) for row in rows}
    if not all(same_code(one, other) for one, other in pairwise(codes)):
        found.append("Runs were trained by different code: a difference may come from the code. The JSON has the commit of each run.")
    if any(code.uncommitted for code in codes):
        found.append("Some runs were trained with uncommitted changes to the package: others cannot reproduce them.")
    if len({tuple(row["versions"].items()) for row in rows}) > 1:
        found.append("Runs were trained under different versions of Python or its packages; the JSON has them for each.")
    return found


def _rates(record: dict[str, Any]) -> list[str]:
    if len(record["rates"]) < 2:
        return [
            "The learning rate was not tuned. A change of rate can outweigh every method, and token weights change the effective step: "
            "give --rates several values before believing a difference."
        ]
    edge = [f"{one['recipe']} on {one['base']} ({one['best']:g})" for one in record["tuning"] if one["best"] is not None and one["at_edge"]]
    if not edge:
        return []
    return [f"The best rate is the smallest or largest tried for {', '.join(edge)}: a better one may lie outside the range."]


def _finalists(record: dict[str, Any]) -> list[str]:
    standing = record["standings"]
    on = [one["recipe"] for one in standing if one["goes_on"]]
    if len(on) == len(standing):
        return []
    return [
        f"{len(on)} of {len(standing)} recipes advanced after tuning ({', '.join(on)}). Selection biases their tuning areas upward; "
        "the reported seeds were not used for it."
    ]


def _controls(summary: dict[str, Any], record: dict[str, Any]) -> list[str]:
    if not record["controls"]:
        return ["There is no A/A control: add random-lambda, whose differences show the effect of chance alone."]
    found = []
    for one in summary["comparisons"]:
        area = one["overall"]["area"]
        if one["control"] and area["t"] is not None and not area["t_interval"][0] <= 0 <= area["t_interval"][1]:
            found.append(f"The A/A control {one['recipe']} itself differs (curve area, t {area['t']:+.1f}): distrust effects of that size.")
    return found


def _chance(summary: dict[str, Any], record: dict[str, Any]) -> list[str]:
    claims = [one for one in summary["comparisons"] if not one["control"]]
    areas = {one["recipe"]: one["overall"]["area"] for one in claims if one["overall"]["area"]["bonferroni_t"] is not None}
    if len(claims) < 2 or not areas:
        return []
    limits = sorted(area["bonferroni_t"] for area in areas.values())
    limit = f"{limits[0]:.1f}" if limits[-1] - limits[0] < 0.05 else f"{limits[0]:.1f} to {limits[-1]:.1f} (fewer pairs, higher limit)"
    beyond = [recipe for recipe, area in areas.items() if area["t"] is not None and abs(area["t"]) > area["bonferroni_t"]]
    intervals = len(TABLE_MEASURES) * len(claims)
    return [
        f"{len(claims)} recipes are compared with {record['reference']}: by curve area, one beyond |t| {limit} is as rare by chance "
        f"as one alone beyond its 5 % limit (Bonferroni). Beyond it: {', '.join(beyond) or 'none'}.",
        f"That counts recipes, not measures: {len(TABLE_MEASURES)} measures of each make {intervals} intervals of 95 %, of which about "
        f"{0.05 * intervals:.0f} would lie on one side of no difference with no effect anywhere.",
    ]


def _few_seeds(summary: dict[str, Any]) -> list[str]:
    compared = [one["overall"] for one in summary["comparisons"] if one["pairs"]]
    if not compared:
        return []
    if any(one["area"]["interval"] == [None, None] for one in compared):
        return ["One seed per base gives no measure of chance: there are no intervals."]
    if all(one["area"]["interval_by"] == "bootstrap" for one in compared):
        return []
    least = min(one["area"]["pairs"] for one in compared)
    return [f"Few pairs ({least}): intervals are Student's t, not bootstrap, which would be too narrow."]

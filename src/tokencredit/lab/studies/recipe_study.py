"""Every recipe tuned and compared, its finalists elsewhere, fewer rollouts than dapo, and the tables of all of that.

Commands: `run`, `elsewhere`, `fewer`, `goal-table`, `tuned`, `finals`.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from tokencredit.config.recipes import RECIPES
from tokencredit.lab.studies import markdown, parser_of, run_command

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The head and the rows."""

ELSEWHERE = ("ibpo", "ibpo-mask", "vineppo")
ONE = "sampling.prompts=256+sampling.group_size=1"
OTHER_BATCHES = (
    f"right-once:{ONE}",
    f"c-rf:{ONE}",
    f"c-rf:credit.type=ntf-keep+{ONE}",
    f"c-rf:credit.type=one-sided+{ONE}",
    f"c-rf:optimizer.steps_per_batch=8+{ONE}",
    f"ntf:{ONE}",
    f"ntf-whitened:{ONE}",
    f"reinforce++:advantage.over=responses+{ONE}",
    f"reinforce++:advantage.over=responses+credit.type=ntf-keep+{ONE}",
    "dapo:sampling.prompts=64+sampling.group_size=4",
    "dapo:optimizer.steps_per_batch=8",
)
SAME_FOR_ALL = {
    "--sampling.group-size": "8",
    "--steps": "40",
    "--evaluation.every": "5",
    "--evaluation.samples": "2",
    "--evaluation.final-problems": "256",
    "--diagnose.every": "0",
}
STUDY = {
    "--recipes": ",".join([*(name for name in RECIPES if name not in ELSEWHERE), *OTHER_BATCHES]),
    "--reference": "dapo",
    "--always": "grpo",
    "--finalists": "8",
    "--models": "steps-shift,steps-sharpen",
    "--rates": "5e-4,1e-3",
    "--tune-seeds": "3",
    "--seeds": "8",
    **SAME_FOR_ALL,
}


def run() -> None:
    """Every recipe through `tokencredit compare`: all are tuned; the best eight, dapo, grpo and the A/A control run on fresh seeds.

    python -m tokencredit.lab.studies.recipe_study run --jobs 2 --out runs/recipe-study
    python -m tokencredit.lab.studies.recipe_study run --jobs 2 --out runs/recipe-study --dry-run

    Flags of `tokencredit compare` and `train` may follow and override these. Every recipe has 256 rollouts per step: 32 prompts x 8,
    and where a recipe needs no groups also 256 x 1. Left out: recipes that start from another base (ibpo), and vineppo, which samples
    more than ten times its rollouts. `elsewhere` takes the finalists and their rates to other bases.
    """
    flags = [word for pair in STUDY.items() for word in pair]
    sys.exit(subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *sys.argv[1:]], check=False).returncode)


FIRST_SEED = "100"


def finalists(study: dict[str, Any]) -> list[str]:
    return [one["recipe"] for one in study["standings"] if one["goes_on"]]


def rates(study: dict[str, Any], kind: str) -> dict[str, float]:
    return {one["recipe"]: one["best"] for one in study["tuning"] if one["base"] == kind and one["best"] is not None}


def at_rate(recipe: str, rate: float) -> str:
    return f"{recipe}{'+' if ':' in recipe else ':'}optimizer.learning_rate={rate:g}"


def flags_of(study: dict[str, Any], kind: str | None) -> dict[str, str]:
    common = {"--seeds": "8", "--first-seed": FIRST_SEED, **SAME_FOR_ALL}
    recipes, reference = finalists(study), study["design"]["reference"]
    if kind is None:
        return {"--recipes": ",".join(recipes), "--reference": reference, "--rates": "5e-4,1e-3", **common}
    given = rates(study, kind)
    if not given:
        sys.exit(f"--kind {kind}: the study tuned nothing on such a base; it has {', '.join(study['design']['bases'])}")
    recipe_flag = ",".join(at_rate(recipe, given[recipe]) for recipe in recipes)
    return {"--recipes": recipe_flag, "--reference": at_rate(reference, given[reference]), **common}


def elsewhere() -> None:
    r"""The finalists of a study on a base or a task that was no part of the study.

    python scripts/make_bases.py steps-shift steps-sharpen --seed 8 --out runs/bases-8
    python -m tokencredit.lab.studies.recipe_study elsewhere runs/recipe-study/comparison.json --kind steps-shift \
        --models runs/bases-8/steps-shift --jobs 2 --out runs/fresh-shift
    python -m tokencredit.lab.studies.recipe_study elsewhere runs/recipe-study/comparison.json --task cotadd --jobs 2 --out runs/cotadd

    With --kind each finalist keeps the rate that was tuned on the study's base of that name; without it rates are tuned again. Flags of
    `tokencredit compare` and `train` may follow and override these. The seeds differ from the study's.
    """
    parser = parser_of(elsewhere)
    parser.add_argument("study", type=Path, metavar="COMPARISON.json")
    parser.add_argument("--kind", metavar="BASE", help="the study's base whose rates are taken")
    options, rest = parser.parse_known_args()
    study = json.loads(options.study.read_text(encoding="utf-8"))
    flags = [word for pair in flags_of(study, options.kind).items() for word in pair]
    sys.exit(subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *rest], check=False).returncode)


FEWER = 28
CANDIDATES = (
    f"c-rf:steps={FEWER}+{ONE}",
    f"c-rf:steps={FEWER}+credit.type=ntf-keep+{ONE}",
    f"c-rf:steps={FEWER}+credit.type=one-sided+{ONE}",
)
FIRST_SEEDS = {"tuning": 300, "test": 400}


def run_comparison(part: str, recipes: Sequence[str], base: str, options: argparse.Namespace, rest: Sequence[str]) -> dict[str, Any]:
    out = options.out / part
    options_of_run = {
        "--recipes": ",".join(recipes),
        "--reference": recipes[0],
        "--models": base,
        "--first-seed": str(FIRST_SEEDS[part]),
        "--seeds": str(options.tune_seeds if part == "tuning" else options.seeds),
        **SAME_FOR_ALL,
        "--out": str(out),
    }
    flags = [word for pair in options_of_run.items() for word in pair]
    done = subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *rest], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads((out / "comparison.json").read_text(encoding="utf-8"))


def final_and_entropy(stored: Mapping[str, Any], recipe: str, rate: float) -> tuple[float, float]:
    """Mean final accuracy and entropy."""
    own = [row for row in stored["runs"] if row["recipe"] == at_rate(recipe, rate)]
    return mean(row["after"]["sampled"] for row in own), mean(row["entropy"] for row in own)


def best_rates(
    stored: Mapping[str, Any], references: Sequence[str], candidates: Sequence[str], rates: Sequence[float], by: str
) -> dict[str, float]:
    found = {(recipe, rate): final_and_entropy(stored, recipe, rate) for recipe in (*references, *candidates) for rate in rates}
    best = {recipe: max(rates, key=lambda rate: found[recipe, rate][0]) for recipe in (*references, *candidates)}
    if by == "entropy":
        leader = max(references, key=lambda recipe: found[recipe, best[recipe]][0])
        required = found[leader, best[leader]][1]
        for recipe in candidates:
            enough = [rate for rate in rates if found[recipe, rate][1] >= required]
            best[recipe] = max(enough, key=lambda rate: found[recipe, rate][0]) if enough else best[recipe]
    return best


def fewer() -> None:
    """Whether a recipe ends where dapo does with seven tenths of its rollouts, its learning rate decayed by then.

    python scripts/make_bases.py steps-shift steps-sharpen --seed 8 --out runs/bases-8
    python -m tokencredit.lab.studies.recipe_study fewer --kind steps-shift --other runs/bases-8/steps-shift --jobs 2 --out runs/fewer-shift
    python -m tokencredit.lab.studies.recipe_study fewer --kind steps-sharpen --other runs/bases-8/steps-sharpen --out runs/fewer-sharpen

    Rates are chosen on the shipped base of the kind (`tuning/`); the reported runs have other seeds and the other base (`test/`). A
    reference has the rate with the best final accuracy. So has a candidate with --choose final; with --choose entropy only those of its
    rates count that end with no less entropy than the best reference does. Flags of `tokencredit compare` and `train` may follow.
    """
    parser = parser_of(fewer)
    parser.add_argument("--kind", required=True, metavar="BASE", help="shipped base that rates are tuned on")
    parser.add_argument("--other", required=True, metavar="BASE", help="base that is reported")
    parser.add_argument("--references", default="dapo", help="with commas between them; the first is what others are compared with")
    parser.add_argument("--candidates", default=",".join(CANDIDATES), help="with commas between them")
    parser.add_argument("--rates", default="7e-4,1e-3,1.4e-3")
    parser.add_argument("--choose", choices=("final", "entropy"), default="final", help="how a candidate's rate is chosen")
    parser.add_argument("--tuned", type=Path, metavar="COMPARISON.json", help="tuning that was done before, instead of another")
    parser.add_argument("--tune-seeds", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", required=True, type=Path)
    options, rest = parser.parse_known_args()
    references, candidates = options.references.split(","), options.candidates.split(",")
    rates = [float(rate) for rate in options.rates.split(",")]
    tried = [at_rate(recipe, rate) for recipe in (*references, *candidates) for rate in rates]
    stored = (
        run_comparison("tuning", tried, options.kind, options, rest)
        if options.tuned is None
        else json.loads(options.tuned.read_text(encoding="utf-8"))
    )
    best = best_rates(stored, references, candidates, rates, options.choose)
    reported = [at_rate(recipe, best[recipe]) for recipe in (*references, *candidates)]
    short = at_rate(f"{references[0]}:steps={FEWER}", best[references[0]])
    run_comparison("test", [*reported, short], options.other, options, rest)


def load(path: str) -> tuple[str, dict[str, Any]]:
    """What a comparison is called, and what it says."""
    return Path(path).stem, json.loads(Path(path).read_text(encoding="utf-8"))


def goal_head(stored: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    tries = {own["k"] for one in stored for own in one["summary"]["recipes"]}
    best_of = f"pass@{tries.pop() if len(tries) == 1 else 'k'}, difference"
    return (
        "from",
        "recipe (rate)",
        "seeds",
        "rollouts",
        "final",
        "difference",
        best_of,
        "end entropy, difference",
        "rollouts to its final",
    )


def points(measure: dict[str, Any]) -> str:
    """A difference of shares, in points."""
    low, high = measure["interval"] or (math.nan, math.nan)
    return f"{100 * measure['low']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def plain(measure: dict[str, Any]) -> str:
    low, high = measure["interval"] or (math.nan, math.nan)
    return f"{measure['low']:+.3f} [{low:+.3f}, {high:+.3f}]"


def factor(measure: dict[str, Any] | None) -> str:
    """As a ratio, from its logarithm; an end that is not known is open."""

    def shown(value: float | None) -> str:
        return "∞" if value is None or not math.isfinite(value) else f"{math.exp(value):.2f}"

    if measure is None:
        return "–"
    low, high = measure["interval"] or (None, None)
    least = "" if measure["high"] == measure["low"] else "at least "
    return f"{least}x{shown(measure['low'])} [{shown(low)}, {shown(high)}]"


def short(recipe: str) -> str:
    """Without the rate, which has a column of its own."""
    name, _, settings = recipe.partition(":")
    kept = [one for one in settings.split("+") if one and not one.startswith("optimizer.learning_rate")]
    return (name + (f": {', '.join(kept)}" if kept else "")).replace("sampling.prompts=256, sampling.group_size=1", "256 x 1")


def goal_rows(source: str, stored: dict[str, Any]) -> list[tuple[str, ...]]:
    found, reference = [], stored["design"]["reference"]
    differences = {one["recipe"]: one["overall"] for one in stored["summary"]["comparisons"]}
    for own in stored["summary"]["recipes"]:
        name, apart = own["recipe"], differences.get(own["recipe"])
        cells = [source, f"{short(name)} ({own['rates'][0]:g})", str(own["runs"]), f"{own['rollouts']['mean']:,.0f}"]
        cells.append(f"{100 * own['final']['mean']:.1f} ± {100 * own['final']['sd']:.1f}")
        if name == reference or apart is None:
            cells += ["", f"{100 * own['pass_at_k']['mean']:.1f}", f"{own['entropy']['mean']:.3f}", "1"]
        else:
            cells += [points(apart["final"]), points(apart["pass_at_k"]), plain(apart["entropy"]), factor(apart["to_final"])]
        found.append(tuple(cells))
    return found


def goal(comparisons: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    head = goal_head([one for _, one in comparisons])
    return head, [row for source, one in comparisons for row in goal_rows(source, one)]


def goal_table() -> None:
    """One row per recipe of each comparison: its final accuracy against the reference's, its rollouts, and its cost in pass@k and entropy.

    python -m tokencredit.lab.studies.recipe_study goal-table goal-13-steps-shift/comparison.json sums.json
    """
    parser = parser_of(goal_table)
    parser.add_argument("comparisons", nargs="+")
    print(markdown(*goal([load(path) for path in parser.parse_args().comparisons])))


def tuned(study: dict[str, Any]) -> Table:
    bases = list(study["design"]["bases"])
    rates = study["design"]["rates"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for one in study["tuning"]:
        found.setdefault(one["recipe"], {})[one["base"]] = one
    standings = {one["recipe"]: one for one in study["standings"]}

    def cells(recipe: str, base: str) -> list[str]:
        areas = {rate["rate"]: rate["area"] for rate in found[recipe][base]["areas"]}
        return ["–" if areas[rate] is None else f"{100 * areas[rate]:.1f}" for rate in rates]

    head = ["recipe", *(f"{base}, {rate:g}" for base in bases for rate in rates), "at the best rates", "goes on"]
    rows = []
    for recipe, standing in standings.items():
        numbers = [cell for base in bases for cell in cells(recipe, base)]
        rows.append([short(recipe), *numbers, f"{100 * standing['area']:.1f}", "yes" if standing["goes_on"] else ""])
    return head, rows


def finals(studies: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    places = [(name, base, study) for name, study in studies for base in study["summary"]["horizons"]]
    seen = Counter(base for _, base, _ in places)
    columns = [(base if seen[base] == 1 else f"{base} ({name})", base, study) for name, base, study in places]
    own: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
    for title, base, study in columns:
        apart = {one["recipe"]: one for one in study["summary"]["comparisons"]}
        for row in study["summary"]["recipes"]:
            if row["base"] != base:
                continue
            compared = apart.get(row["recipe"])
            cell = f"{100 * row['area']['mean']:.1f}" if compared is None else _difference(compared["by_base"][base]["area"])
            own.setdefault(short(row["recipe"]), {})[title] = (cell, row)
    order = sorted(own, key=lambda recipe: -mean(row["area"]["mean"] for _, row in own[recipe].values()))
    head = ["recipe", *(title for title, _, _ in columns), "final", "pass@8", "end entropy"]
    rows = []
    for recipe in order:
        measured = [row for _, row in own[recipe].values()]
        ends = [mean(row[name]["mean"] for row in measured) for name in ("final", "pass_at_k", "entropy")]
        cells = [own[recipe].get(title, ("–", {}))[0] for title, _, _ in columns]
        rows.append([recipe, *cells, f"{100 * ends[0]:.1f}", f"{100 * ends[1]:.1f}", f"{ends[2]:.3f}"])
    return head, rows


def _difference(area: dict[str, Any]) -> str:
    certain = area["t"] is not None and area["bonferroni_t"] is not None and abs(area["t"]) > area["bonferroni_t"]
    return f"**{points(area)}**" if certain else points(area)


def tuned_table() -> None:
    """Curve areas in percent of everything that was tuned.

    python -m tokencredit.lab.studies.recipe_study tuned comparison.json

    "At the best rates" is over the rollouts that all of them cover, as the finalists were chosen.
    """
    parser = parser_of(tuned_table)
    parser.add_argument("comparison")
    print(markdown(*tuned(load(parser.parse_args().comparison)[1])))


def finals_table() -> None:
    """Curve areas of the finalists, in percent, from several comparisons.

    python -m tokencredit.lab.studies.recipe_study finals comparison.json fresh-shift.json fresh-sharpen.json

    A cell is the paired difference to the reference with its 95 % interval, bold beyond the limit that allows for the number of
    recipes. The last three columns are means over the bases.
    """
    parser = parser_of(finals_table)
    parser.add_argument("comparisons", nargs="+")
    print(markdown(*finals([load(path) for path in parser.parse_args().comparisons])))


if __name__ == "__main__":
    tables = {"goal-table": goal_table, "tuned": tuned_table, "finals": finals_table}
    run_command({"run": run, "elsewhere": elsewhere, "fewer": fewer, **tables})

"""The verdict on every claim of `claims.py`: trains the runs, prints tables and verdicts; and how often the rule's intervals hold.

Commands: `run`, `tell`, `intervals`.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from tokencredit.lab.commands.compare_options import watching
from tokencredit.lab.compare.design import Key, PlannedRun
from tokencredit.lab.compare.results import Code, Row, code_of, same_code
from tokencredit.lab.compare.runner import execute, failures_of
from tokencredit.lab.compare.statistics import Bounds, Numbers, Paired, cut, paired, resamples
from tokencredit.lab.compare.statistics import points as as_points
from tokencredit.lab.studies import parser_of, run_command
from tokencredit.lab.studies.claim_runs import (
    MEASURES,
    SETTINGS,
    Judged,
    Study,
    belongs,
    digest,
    harvest,
    horizon_of,
    judge_claim,
    measured,
    needed_runs,
    place,
    seconds_of,
)
from tokencredit.lab.studies.claims import STUDIES
from tokencredit.storage.atomic import atomic_write
from tokencredit.storage.run_dir import describe_environment


def study_report(study: Study, document: dict[str, Any]) -> str:
    rows: list[Row] = document["rows"]
    seeds = sorted({row["seed"] for row in rows})
    lines = [f"## {study.name}: {study.paper}", "", f"Commit {document['commit'] or 'not known'}; seeds {_range(seeds)}; {len(rows)} runs."]
    if document["failed"]:
        lines.append(f"Failed: {'; '.join(document['failed'])}.")
    if document["missing"]:
        lines.append(f"Not there yet: {document['missing']} runs.")
    lines += ["", *(f"* {remark}." for remark in study.remarks)] if study.remarks else []
    for setting, recipes in study.arms.items():
        lines += ["", f"`{setting}`: `{SETTINGS[setting].flags}{' ' + document['flags'] if document['flags'] else ''}`", ""]
        lines += _by_itself(study, rows, setting, recipes)
    for claim in study.claims:
        judged, verdict = judge_claim(claim, rows, study)
        lines += ["", f"**{claim.said}** Reproduced if: {claim.reproduced_if}. Refuted if: {claim.refuted_if}.", ""]
        lines += _table(
            ["compared", "measure", "claimed", "difference, 95 % interval", "t", "by base", "outcome"], [_line(one) for one in judged]
        )
        lines += ["", f"Verdict: **{verdict}**: {numbers_of(judged)}."]
    lines += ["", "Not testable here:", "", *(f"* {reason}" for reason in study.not_testable)] if study.not_testable else []
    return "\n".join(lines) + "\n"


def overview(studies: Sequence[tuple[Study, dict[str, Any]]]) -> str:
    """Every claim in one table."""
    lines = []
    for study, document in studies:
        for claim in study.claims:
            judged, verdict = judge_claim(claim, document["rows"], study)
            lines.append([study.paper, claim.said, verdict, numbers_of(judged)])
    return "\n".join(["## All claims", "", *_table(["paper", "claim", "verdict", "numbers"], lines)]) + "\n"


def numbers_of(judged: Sequence[Judged]) -> str:
    """Of the tests that decide."""
    told_of = []
    for one in judged:
        if one.test.decides:
            measure = MEASURES[one.test.measure]
            words = _with_interval(one.found, one.interval, measure.kind)
            told_of.append(f"{one.test.what}, {measure.title} {words} ({one.outcome}{', ' + one.why if one.why else ''})")
    return "; ".join(told_of)


def _by_itself(study: Study, rows: Sequence[Row], setting: str, recipes: Sequence[str]) -> list[str]:
    lines = []
    for model in SETTINGS[setting].models:
        here = [row for row in rows if row["base"] == place(setting, model) and row["recipe"] in recipes]
        for recipe in recipes:
            own = [row for row in here if row["recipe"] == recipe]
            if own:
                horizon = horizon_of(here, study, setting)
                found = {name: [measured(name, row, horizon=horizon, threshold=study.threshold) for row in own] for name in study.columns}
                cells = [_spread(name, [value for value in found[name] if value is not None]) for name in study.columns]
                lines.append([model, study.names.get(recipe, recipe), str(len(own)), *cells])
    return _table(["base", "recipe", "runs", *(MEASURES[name].title for name in study.columns)], lines)


def _spread(name: str, found: Sequence[Bounds]) -> str:
    """Mean ± standard deviation over seeds; of rollouts the median, with how many runs got there."""
    if not found:
        return "–"
    kind = MEASURES[name].kind
    if kind == "ratio":
        middle, reached = median(value.high for value in found), sum(math.isfinite(value.high) for value in found)
        return (f"{middle:,.0f}" if math.isfinite(middle) else "never") + f" ({reached}/{len(found)})"
    scale, form = (100, ".1f") if kind == "percent" else (1, ".3g")
    numbers = [scale * value.low for value in found]
    return f"{mean(numbers):{form}}" + (f" ± {stdev(numbers):{form}}" if len(numbers) > 1 else "")


def _line(one: Judged) -> list[str]:
    test, kind = one.test, MEASURES[one.test.measure].kind
    by_base = [f"{base.removeprefix(test.setting + '-')} {_with_t(own, kind)}" for base, own in one.by_base.items()]
    claimed = test.expected if test.expected != "no worse" else f"no worse than {_value(-test.margin, kind)}"
    outcome = one.outcome + (f" ({one.why})" if one.why else "") + ("" if test.decides else " (reported only)")
    t = "–" if one.found is None or one.found.t is None else f"{one.found.t:+.1f}"
    return [test.what, MEASURES[test.measure].title, claimed, _with_interval(one.found, one.interval, kind), t, "; ".join(by_base), outcome]


def _with_t(found: Paired | None, kind: str) -> str:
    if found is None:
        return "–"
    return _middle(found, kind) + ("" if found.t is None else f" (t {found.t:+.1f})")


def _middle(found: Paired, kind: str) -> str:
    """One number, or the two that it lies between."""
    if found.exact:
        return _value(found.low, kind)
    return f"{_value(found.low, kind)} to {_value(found.high, kind)}"


def _with_interval(found: Paired | None, interval: Bounds | None, kind: str) -> str:
    if found is None or interval is None:
        return "–"
    return f"{_middle(found, kind)} [{_value(interval.low, kind)}, {_value(interval.high, kind)}]"


def _value(value: float, kind: str) -> str:
    if kind == "ratio":
        return "×∞" if value == math.inf else f"×{math.exp(value):.2f}" if value > -math.inf else "×0"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{100 * value:+.1f}" if kind == "percent" else f"{value:+.3g}"


def _range(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if seeds else "none"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *(f"| {' | '.join(line)} |" for line in lines)]


def run() -> int:
    """Trains the runs that are missing and keeps one JSON per study.

    python -m tokencredit.lab.studies.paper_claims run --seeds 4 --jobs 16 --out paper-claims --runs scratch
    python -m tokencredit.lab.studies.paper_claims run --claims delta,factorial --dry-run
    python -m tokencredit.lab.studies.paper_claims run --seeds 2 --flags="--steps 3 --evaluation.every 1" --out trial

    Each run is `tokencredit train` in a process with one thread. The JSON is written as runs finish: the same command resumes, also
    where only the JSON is left.
    """
    parser = _parser(run)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="concurrent runs")
    parser.add_argument("--flags", default="", help="flags for every run, over those of its setting: for a small trial")
    parser.add_argument("--runs", type=Path, help="folder of the run folders (default: runs/ within --out)")
    parser.add_argument("--commit", help="recorded where git does not know it")
    parser.add_argument("--dry-run", action="store_true", help="count the runs and stop")
    options, chosen = _parse(parser)
    runs = needed_runs(chosen, seeds=options.seeds, first_seed=options.first_seed, flags=options.flags)
    if options.dry_run:
        _print_plan(chosen, runs)
        return 0
    return _train(chosen, runs, options)


def tell() -> int:
    """Prints tables and verdicts from the JSON files alone.

    python -m tokencredit.lab.studies.paper_claims tell --out experiments/<date>-paper-claims
    """
    options, chosen = _parse(_parser(tell))
    files = [(study, options.out / f"{study.name}.json") for study in chosen]
    documents = [(study, json.loads(file.read_text(encoding="utf-8"))) for study, file in files if file.is_file()]
    print("\n".join([*(study_report(study, document) for study, document in documents), overview(documents)]))
    return 0


def _parser(command: Callable[[], int]) -> argparse.ArgumentParser:
    parser = parser_of(command)
    parser.add_argument("--claims", default=",".join(STUDIES), help="studies, with commas between (default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/paper-claims"), help="folder of the results")
    return parser


def _parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[Study]]:
    options = parser.parse_args()
    names = options.claims.split(",")
    if unknown := [name for name in names if name not in STUDIES]:
        parser.error(f"claims: {unknown[0]!r} is not known; it must be among {', '.join(STUDIES)}")
    return options, [STUDIES[name] for name in names]


def _print_plan(studies: list[Study], runs: list[PlannedRun]) -> None:
    for study in studies:
        own = [run for run in runs if belongs(run.base, run.arm, study)]
        shared = sum(sum(belongs(run.base, run.arm, other) for other in studies) > 1 for run in own)
        print(f"{study.name}: {len(own)} runs ({shared} shared with others), about {sum(map(seconds_of, own)) / 60:.0f} core-minutes")
    print(f"in all: {len(runs)} runs, about {sum(map(seconds_of, runs)) / 60:.0f} core-minutes")


def _train(studies: list[Study], runs: list[PlannedRun], options: argparse.Namespace) -> int:
    environment = describe_environment()
    code = code_of(environment)
    folder: Path = options.runs or options.out / "runs"
    options.out.mkdir(parents=True, exist_ok=True)
    _refuse_to_forget(options.out, studies, {planned.seed for planned in runs})
    rows = _known_rows(options.out, runs, code)
    for planned in runs:
        if planned.key not in rows and (row := harvest(planned, folder, code)) is not None:
            rows[planned.key] = row
    to_do = [planned for planned in runs if planned.key not in rows]
    made_by = {"commit": code.commit or options.commit, "uncommitted": code.uncommitted, "seeds": options.seeds, "flags": options.flags}
    made_by |= {"python": environment["python"], "platform": environment["platform"], "packages": environment["packages"]}

    def keep(changed: list[Study]) -> None:
        for study in changed:
            own = [planned for planned in runs if belongs(planned.base, planned.arm, study)]
            there = [rows[planned.key] for planned in own if planned.key in rows]
            failed = [failure.run.description for failure in failures_of([planned for planned in own if planned.key not in rows], folder)]
            document = {
                "study": study.name,
                "paper": study.paper,
                **made_by,
                "failed": failed,
                "missing": len(own) - len(there) - len(failed),
                "rows": there,
            }
            atomic_write(options.out / f"{study.name}.json", json.dumps(document, indent=1) + "\n")

    def finish(planned: PlannedRun) -> Row | None:
        # Just trained: used even if the package was edited meanwhile; the row names the code.
        row = harvest(planned, folder, code, any_code=True)
        if row is not None:
            rows[planned.key] = row
            keep([study for study in studies if belongs(planned.base, planned.arm, study)])
        return row

    try:
        with watching(len(runs), finish) as watcher:
            watcher.there_already(len(rows))
            failures = execute(to_do, folder, at_once=options.jobs, watcher=watcher)
    except KeyboardInterrupt:
        print("Stopped. The same command goes on.", file=sys.stderr)
        return 130
    finally:
        keep(studies)
    return 1 if failures else 0


def _refuse_to_forget(out: Path, studies: list[Study], seeds: set[int]) -> None:
    for study in studies:
        if (file := out / f"{study.name}.json").is_file():
            kept = {row["seed"] for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}
            if lost := sorted(kept - seeds):
                sys.exit(
                    f"{file} holds seed {lost[0]}, which this command does not include and would drop; include it, or name another --out"
                )


def _known_rows(out: Path, runs: list[PlannedRun], code: Code) -> dict[Key, Row]:
    """Rows of these very settings and this code, whichever study they were kept for."""
    kept: dict[tuple[Any, ...], Row] = {}
    for name in STUDIES:
        if (file := out / f"{name}.json").is_file():
            for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
                if same_code(Code(row["commit"], row["uncommitted"]), code):
                    kept[row["recipe"], row["base"], row["rate"], row["seed"], row["config"]] = row
    return {planned.key: kept[*planned.key, digest(planned)] for planned in runs if (*planned.key, digest(planned)) in kept}


SIZES = ((3,), (5,), (8,), (4, 4), (8, 8), (16,))
"""Seeds on each base."""
TRUTH = 1.0
SHAPES = {"normal": lambda rng, size: rng.normal(TRUTH, 1.0, size), "skewed": lambda rng, size: rng.exponential(TRUTH, size)}


def percentile_bounds(strata: list[Numbers], sizes: tuple[int, ...]) -> Bounds:
    means = [stratum @ count.T / len(stratum) for stratum, count in zip(strata, resamples(sizes), strict=True)]
    return cut(np.mean(means, axis=0), 0.025)


def coverage(sizes: tuple[int, ...], shape: str, tries: int) -> dict[str, float]:
    rng, held = np.random.default_rng(0), dict.fromkeys(("percentiles", "bootstrap", "t", "shown"), 0)
    for _ in range(tries):
        strata = [SHAPES[shape](rng, size) for size in sizes]
        found = paired([as_points(stratum.tolist()) for stratum in strata])
        assert found is not None
        intervals = found.intervals
        for name, one in zip(held, (percentile_bounds(strata, sizes), intervals.bootstrap, intervals.t, intervals.shown), strict=True):
            held[name] += one.low <= TRUTH <= one.high
    return {name: count / tries for name, count in held.items()}


def intervals() -> None:
    """How often the intervals of `tokencredit compare` contain a known difference, next to plain percentiles: by simulation.

    python -m tokencredit.lab.studies.paper_claims intervals --tries 2000 --out results.json
    """
    parser = parser_of(intervals)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [
        {"seeds": list(sizes), "differences": shape, "tries": options.tries, **coverage(sizes, shape, options.tries)}
        for shape in SHAPES
        for sizes in SIZES
    ]
    for row in rows:
        print(f"{row['differences']:<7} {'+'.join(map(str, row['seeds'])):<4}", *(f"{name} {row[name]:.3f}" for name in list(row)[3:]))
    if options.out is not None:
        options.out.write_text(json.dumps({"commit": describe_environment()["commit"], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    run_command({"run": run, "tell": tell, "intervals": intervals})

"""The papers' claims, each with a verdict and the number: declared in `claims/`, trained in one pool, judged by one rule.

    python experiments/paper_claims.py run --seeds 4 --jobs 16 --out experiments/<date>-paper-claims --runs scratch
    python experiments/paper_claims.py run --claims delta,factorial --dry-run
    python experiments/paper_claims.py run --seeds 2 --flags="--steps 3 --evaluation.every 1" --out trial
    python experiments/paper_claims.py tell --out experiments/<date>-paper-claims

`run` trains what is missing with `tokencredit train`, each run a process of one thread, and keeps a JSON per study as runs finish: the
same command goes on where it stopped, also where only the JSON is left. `tell` prints tables and verdicts from the JSON alone.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from claims.all_claims import STUDIES
from claims.declaration import Study
from claims.harvest import harvest
from claims.planning import belongs, digest, needed_runs, seconds_of
from claims.telling import overview, told

from tokencredit.lab.commands.compare_options import watching
from tokencredit.lab.compare.design import Key, PlannedRun
from tokencredit.lab.compare.results import Code, Row, code_of, same_code
from tokencredit.lab.compare.runner import execute, failures_of
from tokencredit.storage.atomic import atomic_write
from tokencredit.storage.run_dir import describe_environment


def main() -> int:
    options = _parse()
    chosen = [STUDIES[name] for name in options.claims.split(",")]
    if options.command == "tell":
        files = [(study, options.out / f"{study.name}.json") for study in chosen]
        documents = [(study, json.loads(file.read_text(encoding="utf-8"))) for study, file in files if file.is_file()]
        print("\n".join([*(told(study, document) for study, document in documents), overview(documents)]))
        return 0
    runs = needed_runs(chosen, seeds=options.seeds, first_seed=options.first_seed, flags=options.flags)
    if options.dry_run:
        _print_plan(chosen, runs)
        return 0
    return _train(chosen, runs, options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, tell = commands.add_parser("run"), commands.add_parser("tell")
    for command in (run, tell):
        command.add_argument("--claims", default=",".join(STUDIES), help="studies, with commas between (default: all)")
        command.add_argument("--out", type=Path, default=Path("runs/paper-claims"), help="folder of the results")
    run.add_argument("--seeds", type=int, default=4)
    run.add_argument("--first-seed", type=int, default=0)
    run.add_argument("--jobs", type=int, default=2, help="runs at a time")
    run.add_argument("--flags", default="", help="flags for every run, over those of its setting: for a small trial")
    run.add_argument("--runs", type=Path, help="folder of the run folders (default: runs/ within --out)")
    run.add_argument("--commit", help="written down where git cannot tell it")
    run.add_argument("--dry-run", action="store_true", help="count the runs and stop")
    options = parser.parse_args()
    if unknown := [name for name in options.claims.split(",") if name not in STUDIES]:
        parser.error(f"claims: {unknown[0]!r} is not known; it must be among {', '.join(STUDIES)}")
    return options


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
            failed = [failure.run.told for failure in failures_of([planned for planned in own if planned.key not in rows], folder)]
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
        # Trained just now: used even if somebody edited the package meanwhile; the row says by which code.
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
                    f"{file} holds seed {lost[0]}, which was not asked for and would be dropped; ask for it too, or name another --out"
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


if __name__ == "__main__":
    sys.exit(main())

"""What the abstract of the cancellation paper (2605.08666) claims, tested where it can be measured.

    python experiments/cancellation_claims.py --seeds 8 --jobs 2 --out experiments/<date>-cancellation-claims

For each base and seed a `dapo` run of 40 steps is looked at three times (steps 1, 20, 40). Then, from the base and from the run's
20th step, single training steps are taken by arms that differ in one thing and share their rollouts: shuffled, query-preserved
and stratified batching, and positive-only credit. Everything is `tokencredit train` in a process of its own, one thread each;
`--jobs 0` prints the tables of an existing results file.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from claims_tables import print_tables

BASES = {"steps-shift": "", "steps-sharpen": "--model steps-sharpen", "cotadd": "--task.type cotadd"}
ARMS = {
    "shuffled": "--recipe dapo",
    "query-preserved": "--recipe dapo --batching.type query-preserved",
    "stratified": "--recipe dapo --batching.type stratified",
    "positive-only": "--recipe positive-only",
}
NO_EVALUATION = "--evaluation.every 0 --evaluation.final-problems 1 --evaluation.final-samples 1 --evaluation.problems 1"
LOOK = "--diagnose.groups 0 --diagnose.coupling-tokens 4096 --tokens-every 0 --save-every 0 --no-report"
VALUE = "--diagnose.value-budget 32768 --diagnose.value-continuations 64"
FORMAT, DECISIVE = ("preamble", "separator"), ("result",)


def train(flags: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "tokencredit", "train", *shlex.split(flags), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    if done.returncode:
        raise RuntimeError(f"{flags} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return folder


def tokens_of(folder: Path, step: int) -> list[dict[str, Any]]:
    """Evidence of every token with its class."""
    from pyarrow import parquet

    found = parquet.read_table(folder / "findings" / f"step-{step:06}.parquet").to_pylist()
    classes = parquet.read_table(folder / "tokens" / f"step-{step:06}.parquet", columns=["token_class"]).column("token_class").to_pylist()
    return [row | {"token_class": name} for row, name in zip(found, classes, strict=True)]


def share(rows: list[dict[str, Any]], classes: Iterable[str], size: Callable[[dict[str, Any]], float]) -> float:
    inside = sum(size(row) for row in rows if row["token_class"] in classes)
    return inside / sum(size(row) for row in rows)


def cancelled(rows: list[dict[str, Any]], positive: str, negative: str, classes: Iterable[str] | None) -> float:
    chosen = [row for row in rows if row[positive] is not None and (classes is None or row["token_class"] in classes)]
    whole = sum(abs(row[positive]) + abs(row[negative]) for row in chosen)
    return 1 - sum(abs(row[positive] + row[negative]) for row in chosen) / whole if whole else math.nan


def pairs(table: list[dict[str, Any]], identity: str, *buckets: str) -> dict[str, float]:
    wanted = [
        row
        for row in table
        if identity in (None, row["identity"]) and (not buckets or {row["confidence"], row["other_confidence"]} <= set(buckets))
    ]
    return {
        "pairs": sum(row["pairs"] for row in wanted) / sum(row["pairs"] for row in table),
        "coupling": sum(row["share"] for row in wanted),
    }


def look(folder: Path, step: int) -> dict[str, Any]:
    """The numbers this experiment is about, from the files of one look."""
    written = json.loads((folder / "findings" / f"step-{step:06}.json").read_text())
    found = {finding["name"]: finding for finding in written["findings"]}
    rows, flips, table = tokens_of(folder, step), found["flips"]["numbers"], found["coupling"]["tables"]["pairs"]
    unsure = found["flips"]["tables"]["by_confidence"]
    result: dict[str, Any] = {
        "correlation/first": found["effect"]["numbers"]["first/correlation"],
        "correlation/step": found["effect"]["numbers"]["step/correlation"],
        **{f"flips/{key}": flips[f"step/band/{key}"] for key in ("positive/boosted", "negative/boosted", "positive/flip", "negative/flip")},
        **{
            f"flips/unsure/{row['side']}/boosted": row["boosted"]
            for row in unsure
            if row["horizon"] == "step" and row["confidence"] == "p < 0.5"
        },
        **{f"coupling/same/{key}": value for key, value in pairs(table, "same").items()},
        **{f"coupling/same unsure/{key}": value for key, value in pairs(table, "same", "p < 0.5").items()},
        **{f"coupling/different unsure/{key}": value for key, value in pairs(table, "different", "p < 0.5").items()},
        "tax/any": found["tax"]["numbers"]["any/kl"],
        "cancelled/batch/all": cancelled(rows, "raw_positive", "raw_negative", None),
        "cancelled/mini/all": cancelled(rows, "raw_mini_positive", "raw_mini_negative", None),
    }
    if any(row["token_class"] in DECISIVE for row in rows):
        for name, classes in (("format", FORMAT), ("decisive", DECISIVE)):
            result |= {
                f"cancelled/batch/{name}": cancelled(rows, "raw_positive", "raw_negative", classes),
                f"cancelled/mini/{name}": cancelled(rows, "raw_mini_positive", "raw_mini_negative", classes),
                f"moved/kl/{name}": share(rows, classes, lambda row: row["kl"]),
                f"moved/change/{name}": share(rows, classes, lambda row: abs(row["change_step"])),
                f"effect/positive/{name}": share(rows, classes, lambda row: abs(row["raw_positive"])),
                f"effect/net/{name}": share(rows, classes, lambda row: abs(row["raw_positive"] + row["raw_negative"])),
            }
    if "value" in found:
        result |= {f"value/{key}": value for key, value in found["value"]["numbers"].items()}
    return result


def one_seed(base: str, seed: int, scratch: Path, arms: dict[str, str]) -> list[dict[str, Any]]:
    common = f"{BASES[base]} --seed {seed} {NO_EVALUATION} {LOOK}"
    steady = train(f"--recipe dapo --steps 40 --keep-every 20 --diagnose.every 20 {common}", scratch / f"{base}-{seed}")
    commit = json.loads((steady / "env.json").read_text())["commit"]
    rows = [{"arm": "run", "start": step - 1, **look(steady, step)} for step in (1, 20, 40)]
    # The last of two equal flags counts. Another seed, so that the checkpoint does not meet the prompts of the run's first step again.
    starts = {0: "", 20: f"--model {steady / 'checkpoints' / 'step-000020'} --seed {1000 + seed}"}
    for start, other in starts.items():
        for arm, flags in arms.items():
            worth = VALUE if arm == "shuffled" else ""
            folder = train(f"{flags} {common} {other} --steps 1 --diagnose.every 1 {worth}", scratch / f"{base}-{seed}-{start}-{arm}")
            rows.append({"arm": arm, "start": start, **look(folder, 1)})
    return [{"base": base, "seed": seed, "commit": commit, **row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bases", default=",".join(BASES))
    parser.add_argument("--runs-only", action="store_true", help="leave the arms out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    file = options.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    done = {(row["base"], row["seed"]) for row in rows}
    wanted = [(base, seed) for seed in range(options.seeds) for base in options.bases.split(",") if (base, seed) not in done]
    if options.jobs and wanted:
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
            for number, found in enumerate(
                pool.map(lambda chosen: one_seed(*chosen, Path(scratch), {} if options.runs_only else ARMS), wanted), 1
            ):
                rows += found
                file.write_text(json.dumps(rows, indent=1) + "\n")
                print(f"{number} of {len(wanted)}", file=sys.stderr)
    print_tables(rows)


if __name__ == "__main__":
    main()

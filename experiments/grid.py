"""Train recipes x seeds of one configuration, several at a time, and tell what came out with its spread.

    python experiments/grid.py --recipes grpo,dapo,delta --seeds 3 --jobs 2 --out experiments/2026-11-15-six-recipes/results.json
    python experiments/grid.py --recipes delta --seeds 3 --flags "--steps 80"

Every run is `tokencredit train` in a process of its own, one thread each. Rows are kept as they come, so an interrupted
grid goes on where it stopped; the table is printed from the rows alone (`--jobs 0` only prints).
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

THRESHOLD = 0.8


def train(recipe: str, seed: int, flags: str, runs: Path) -> dict[str, Any]:
    folder = runs / f"{recipe}-{seed}-{abs(hash(flags))}"
    command = [sys.executable, "-m", "tokencredit", "train", "--recipe", recipe, "--seed", str(seed), "--no-report", "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    said = runs / f"{folder.name}.txt"
    with said.open("w") as output:
        process = subprocess.Popen([*command, *shlex.split(flags)], stdout=output, stderr=subprocess.STDOUT, env=environment)
        # Waited for by hand, because only so does the system tell what this one process used.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{recipe} seed {seed} ended with {process.returncode}: {said.read_text()[-2000:]}")
    result = json.loads((folder / "result.json").read_text())
    environment_file = json.loads((folder / "env.json").read_text())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [(row["rollouts_used"], row["held_out/sampled"]) for row in metrics if "held_out/sampled" in row]
    return {
        "recipe": recipe,
        "seed": seed,
        "flags": flags,
        "commit": environment_file["commit"],
        "torch": environment_file["packages"]["torch"],
        "before": result["before"],
        "after": result["after"],
        "rollouts_used": result["rollouts_used"],
        "rollouts_to_threshold": next((used for used, accuracy in curve if accuracy >= THRESHOLD), None),
        "curve": curve,
        "final_entropy": metrics[-1]["entropy"],
        "seconds": sum(result["seconds"].values()),
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "stages": result["seconds"],
    }


def curve_area(row: dict[str, Any]) -> float:
    """Mean held-out accuracy over the evaluations of a run: the area under its curve."""
    return mean(accuracy for _, accuracy in row["curve"])


def spread(values: list[float], digits: int = 1, scale: float = 100.0) -> str:
    if len(values) == 1:
        return f"{scale * values[0]:.{digits}f}"
    return f"{scale * mean(values):.{digits}f} ± {scale * stdev(values):.{digits}f}"


def table(rows: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds; the paired difference to dapo where dapo was run with the same seeds and flags."""
    lines = [
        "| recipe | seeds | sampled before | sampled after | greedy after | pass@k after | curve area | paired to dapo (area) "
        f"| rollouts | rollouts to {THRESHOLD:.0%} | entropy | seconds | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((row["recipe"], row["flags"]) for row in rows))
    for recipe, flags in keys:
        own = sorted((row for row in rows if (row["recipe"], row["flags"]) == (recipe, flags)), key=lambda row: row["seed"])
        base = {row["seed"]: row for row in rows if (row["recipe"], row["flags"]) == ("dapo", flags)}
        paired = [curve_area(row) - curve_area(base[row["seed"]]) for row in own if row["seed"] in base]
        gap = "–" if recipe == "dapo" or len(paired) < 2 else f"{spread(paired)} (t {t_value(paired):+.1f})"
        reached = [row["rollouts_to_threshold"] for row in own if row["rollouts_to_threshold"] is not None]
        to_threshold = f"{mean(reached):,.0f} ({len(reached)}/{len(own)})" if reached else f"never (0/{len(own)})"
        lines.append(
            f"| {recipe}{' ' + flags if flags else ''} | {len(own)} | {spread([row['before']['sampled'] for row in own])} "
            f"| {spread([row['after']['sampled'] for row in own])} | {spread([row['after']['greedy'] for row in own])} "
            f"| {spread([row['after']['pass_at_k'] for row in own])} | {spread([curve_area(row) for row in own])} | {gap} "
            f"| {mean(row['rollouts_used'] for row in own):,.0f} | {to_threshold} "
            f"| {spread([row['final_entropy'] for row in own], 3, 1.0)} | {spread([row['seconds'] for row in own], 0, 1.0)} "
            f"| {spread([row['cpu_seconds'] for row in own], 0, 1.0) if all('cpu_seconds' in row for row in own) else '–'} |"
        )
    return "\n".join(lines)


def t_value(differences: list[float]) -> float:
    error = stdev(differences) / len(differences) ** 0.5
    return mean(differences) / error if error else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="grpo,dr-grpo,rloo,dapo,dapo-dynamic,delta")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--flags", action="append", help="flags for `tokencredit train`; may be given several times")
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rows are added to")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    known = {(row["recipe"], row["seed"], row["flags"]) for row in rows}
    wanted = [
        (recipe, seed, flags)
        for flags in options.flags or [""]
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for recipe in options.recipes.split(",")
    ]
    missing = [key for key in wanted if key not in known] if options.jobs else []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for number, row in enumerate(pool.map(lambda key: train(*key, Path(scratch)), missing), 1):
            rows.append(row)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(
                f"{number}/{len(missing)} {row['recipe']} seed {row['seed']}: {row['after']['sampled']:.3f} in {row['seconds']:.0f} s",
                flush=True,
            )
    print(table(rows))


if __name__ == "__main__":
    main()

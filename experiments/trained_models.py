"""A language model on tasks, before and after training, each measured with `tokencredit evaluate` on the same held-out problems.

    python experiments/trained_models.py FOLDER/*.toml --seeds 1 --jobs 3 --out FOLDER/results.json
    python experiments/trained_models.py FOLDER/letter-counting.toml --seeds 3 --jobs 3 --out FOLDER/results.json

Every run is a process of its own. Rows are kept as they come; `--jobs 0` only prints the table from them.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def call(arguments: list[str], log: Path) -> None:
    with log.open("a") as output:
        done = subprocess.run([sys.executable, "-m", "tokencredit", *arguments], stdout=output, stderr=subprocess.STDOUT, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(arguments)} ended with {done.returncode}: {log.read_text()[-2000:]}")


def measured(model: str, config: Path, seed: int, flags: list[str], place: Path, log: Path, *, problems: int) -> Row:
    asked = ["--problems", str(problems), "--samples", "8", "--seed", str(seed)]
    call(["evaluate", model, str(config), *asked, *flags, "--json", str(place)], log)
    return json.loads(place.read_text())["results"][0]


def one(config: Path, seed: int, options: argparse.Namespace, runs: Path) -> Row:
    name = f"{config.stem}-{seed}"
    log, folder, flags = runs / f"{name}.txt", runs / name, shlex.split(options.evaluate_flags)
    model = tomllib.loads(config.read_text())["model"]
    before = measured(model, config, seed, flags, runs / f"{name}-before.json", log, problems=options.problems)
    start = time.monotonic()
    call(["train", str(config), "--seed", str(seed), "--no-report", "--out", str(folder), *shlex.split(options.flags)], log)
    seconds = time.monotonic() - start
    after = measured(str(folder / "model"), config, seed, flags, runs / f"{name}-after.json", log, problems=options.problems)
    result, environment = (json.loads((folder / part).read_text()) for part in ("result.json", "env.json"))
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "config": config.name,
        "seed": seed,
        "flags": options.flags,
        "commit": environment["commit"],
        "torch": environment["packages"]["torch"],
        "before": before,
        "after": after,
        "steps": result["steps"],
        "best_step": result["best_step"],
        "rollouts_used": result["rollouts_used"],
        "minutes": seconds / 60,
        "stages": result["seconds"],
        "curve": [(row["step"], row["held_out/sampled"]) for row in metrics if "held_out/sampled" in row],
    }


def pass_at_1(row: Row) -> str:
    value, low, high = (100 * row["pass_at"]["1"][name] for name in ("value", "low", "high"))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def table(rows: list[Row]) -> str:
    lines = [
        "| task | seed | greedy | pass@1 before | pass@1 after | pass@8 | mixed groups | length | rollouts | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["config"], row["seed"])):
        before, after = row["before"], row["after"]
        pass_8 = [side["pass_at"]["8"]["value"] for side in (before, after)]
        lines.append(
            f"| {row['config'].removesuffix('.toml')} | {row['seed']} | {100 * before['greedy']['value']:.1f} → "
            f"{100 * after['greedy']['value']:.1f} | {pass_at_1(before)} | {pass_at_1(after)} | "
            f"{100 * pass_8[0]:.1f} → {100 * pass_8[1]:.1f} | {100 * before['mixed']['value']:.0f} → {100 * after['mixed']['value']:.0f} | "
            f"{before['length']:.1f} → {after['length']:.1f} | {row['rollouts_used']:,} | {row['minutes']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--flags", default="", help="for `tokencredit train`")
    parser.add_argument("--evaluate-flags", default="", help="for `tokencredit evaluate`")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.out.read_text()) if options.out.exists() else []
    known = {(row["config"], row["seed"], row["flags"]) for row in rows}
    waiting = [
        (config, seed)
        for seed in range(options.seeds)
        for config in options.configs
        if (config.name, seed, options.flags) not in known and options.jobs
    ]
    writing = threading.Lock()
    with tempfile.TemporaryDirectory() as runs, ThreadPoolExecutor(max(1, options.jobs)) as pool:

        def keep(asked: tuple[Path, int]) -> None:
            row = one(*asked, options, Path(runs))
            with writing:
                rows.append(row)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(table([row]).splitlines()[-1], flush=True)

        list(pool.map(keep, waiting))
    print(table(rows))


if __name__ == "__main__":
    main()

"""Whole training runs of one configuration, tabulated: recipes x seeds, formats of the weights, language models on tasks.

Commands: `grid`, `weights`, `models`.
"""

import argparse
import gc
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
from statistics import mean, stdev
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tokencredit import resolve, train
from tokencredit.config.resolve import read_toml
from tokencredit.forward.padded import trainable_parameters
from tokencredit.lab.studies import parser_of, run_command
from tokencredit.policy.policy import Policy
from tokencredit.storage.run_dir import describe_environment
from tokencredit.trainer.callbacks import NoCallback
from tokencredit.trainer.evaluate import Accuracy

THRESHOLD = 0.8


def train_run(recipe: str, seed: int, flags: str, runs: Path) -> dict[str, Any]:
    folder = runs / f"{recipe}-{seed}-{abs(hash(flags))}"
    command = [sys.executable, "-m", "tokencredit", "train", "--recipe", recipe, "--seed", str(seed), "--no-report", "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    said = runs / f"{folder.name}.txt"
    with said.open("w") as output:
        process = subprocess.Popen([*command, *shlex.split(flags)], stdout=output, stderr=subprocess.STDOUT, env=environment)
        # wait4 returns the resource usage of this process alone.
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


def grid_table(rows: list[dict[str, Any]]) -> str:
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


def grid() -> None:
    """Recipes x seeds of one configuration, several runs at a time, with the spread over seeds.

    python -m tokencredit.lab.studies.training grid --recipes grpo,dapo,delta --seeds 3 --jobs 2 --out results.json
    python -m tokencredit.lab.studies.training grid --recipes delta --seeds 3 --flags "--steps 80" --out results.json

    Every run is `tokencredit train` in a process of its own with one thread. Rows are written as runs finish, so an interrupted grid
    resumes; the table is printed from the rows alone (`--jobs 0` only prints).
    """
    parser = parser_of(grid)
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
        for number, row in enumerate(pool.map(lambda key: train_run(key[0], key[1], key[2], Path(scratch)), missing), 1):
            rows.append(row)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(
                f"{number}/{len(missing)} {row['recipe']} seed {row['seed']}: {row['after']['sampled']:.3f} in {row['seconds']:.0f} s",
                flush=True,
            )
    print(grid_table(rows))


WEIGHTS = ("float32", "bfloat16", "bfloat16-stochastic")


class Changed:
    """Shares of the weights that are not what they were: as they are kept, and as a bfloat16 pass reads them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.start = {name: value.detach().to("cpu", copy=True) for name, value in trainable_parameters(policy.model).items()}

    def shares(self) -> dict[str, float]:
        kept, read, count = 0, 0, 0
        for name, value in trainable_parameters(self.policy.model).items():
            now, before = value.detach().cpu(), self.start[name]
            kept += int((now != before).sum())
            read += int((now.bfloat16() != before.bfloat16()).sum())
            count += now.numel()
        return {"kept": kept / count, "read_in_bfloat16": read / count}


class Watcher(NoCallback):
    """Stores the initial weights and compares them with the weights after the first optimizer step."""

    def __init__(self) -> None:
        self.changed: Changed | None = None
        self.first: dict[str, float] | None = None

    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        self.changed = Changed(policy)

    def after_an_optimizer_step(self, *_: Any) -> None:
        if self.changed is not None and self.first is None:
            self.first = self.changed.shares()


def measure_weights(layer: dict[str, Any], model: str, weights: str, seed: int, steps: int) -> dict[str, Any]:
    fixed = {"model": model, "seed": seed, "steps": steps, "dtype": "bfloat16", "weights": master_weights}
    config = resolve([layer, fixed, {"diagnose": {"every": 0}, "save_every": 0, "tokens_every": 0}])
    gc.collect()
    on_gpu = torch.cuda.is_available() and config.device != "cpu"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    watcher = Watcher()
    handle = register_optimizer_step_post_hook(watcher.after_an_optimizer_step)
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            outcome = train(config, Path(scratch) / "run", watcher)
            rows = [json.loads(line) for line in (Path(scratch) / "run" / "metrics.jsonl").read_text().splitlines()]
    finally:
        handle.remove()
    assert watcher.changed is not None
    environment = describe_environment()
    return {
        "model": model,
        "weights": master_weights,
        "seed": seed,
        "steps": steps,
        "learning_rate": config.optimizer.learning_rate,
        "before": outcome.result["before"],
        "after": outcome.result["after"],
        "curve": [(row["step"], row["held_out/sampled"]) for row in rows if "held_out/sampled" in row],
        "gradient_norm": [row["grad_norm"] for row in rows if "grad_norm" in row],
        "changed_first": watcher.first,
        "changed_last": watcher.changed.shares(),
        "parameters": sum(value.numel() for value in outcome.policy.model.parameters()),
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        "seconds": time.perf_counter() - began,
        "stages": outcome.result["seconds"],
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "commit": environment["commit"],
        "torch": torch.__version__,
    }


def weights_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| weights | seeds | sampled before | sampled after | greedy after | changed by the first step, % | changed at the end, % "
        "| peak GPU MiB | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for weights in WEIGHTS:
        own = [row for row in rows if row["weights"] == weights]
        if not own:
            continue
        peak = [row["peak_mib"] for row in own if row["peak_mib"] is not None]
        first = [row["changed_first"]["kept"] for row in own if row["changed_first"] is not None]
        lines.append(
            f"| {weights} | {len(own)} | {spread([row['before']['sampled'] for row in own])} "
            f"| {spread([row['after']['sampled'] for row in own])} | {spread([row['after']['greedy'] for row in own])} "
            f"| {spread(first) if first else '–'} | {spread([row['changed_last']['kept'] for row in own])} "
            f"| {f'{max(peak):,.0f}' if peak else '–'} | {spread([row['seconds'] for row in own], 0, 1.0)} |"
        )
    return "\n".join(lines)


def master_weights() -> None:
    """The dtype of the weights: float32 with bfloat16 passes, bfloat16, and bfloat16 with stochastic rounding, on equal seeds.

    python -m tokencredit.lab.studies.training weights --model DIR --layer task.toml --seeds 3 --steps 40 --out master-weights

    The layer is any file that `tokencredit train` reads (task, lengths, learning rate). Rows are written as runs finish, so an interrupted
    experiment resumes; `--seeds 0` only prints the table.
    """
    parser = parser_of(master_weights)
    parser.add_argument("--model", required=True, help="a shipped base or a folder with a causal LM")
    parser.add_argument("--layer", type=Path, required=True, help="TOML file with the task and whatever else is the same for all")
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True, help="folder whose results.json rows are added to")
    options = parser.parse_args()
    file, layer = options.out / "results.json", read_toml(options.layer)
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    known = {(row["model"], row["weights"], row["seed"], row["steps"]) for row in rows}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "layer.toml").write_text(options.layer.read_text())
    for seed in range(options.seeds):
        for weights in options.weights.split(","):
            if (options.model, weights, seed, options.steps) in known:
                continue
            rows.append(measure_weights(layer, options.model, weights, seed, options.steps))
            file.write_text(json.dumps(rows, indent=1) + "\n")
            last = rows[-1]
            print(
                f"{weights} seed {seed}: {last['before']['sampled']:.3f} -> {last['after']['sampled']:.3f}, "
                f"first step changed {last['changed_first']}, {last['seconds']:.0f} s",
                flush=True,
            )
    print(weights_table(rows))


Row = dict[str, Any]


def run_tokencredit(arguments: list[str], log: Path) -> None:
    with log.open("a") as output:
        done = subprocess.run([sys.executable, "-m", "tokencredit", *arguments], stdout=output, stderr=subprocess.STDOUT, env=os.environ)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(arguments)} ended with {done.returncode}: {log.read_text()[-2000:]}")


def evaluated(model: str, config: Path, seed: int, flags: list[str], place: Path, log: Path, *, problems: int) -> Row:
    case = ["--problems", str(problems), "--samples", "8", "--seed", str(seed)]
    run_tokencredit(["evaluate", model, str(config), *case, *flags, "--json", str(place)], log)
    return json.loads(place.read_text())["results"][0]


def train_and_evaluate(config: Path, seed: int, options: argparse.Namespace, runs: Path) -> Row:
    name = f"{config.stem}-{seed}"
    log, folder, flags = runs / f"{name}.txt", runs / name, shlex.split(options.evaluate_flags)
    model = tomllib.loads(config.read_text())["model"]
    before = evaluated(model, config, seed, flags, runs / f"{name}-before.json", log, problems=options.problems)
    start = time.monotonic()
    run_tokencredit(["train", str(config), "--seed", str(seed), "--no-report", "--out", str(folder), *shlex.split(options.flags)], log)
    seconds = time.monotonic() - start
    after = evaluated(str(folder / "model"), config, seed, flags, runs / f"{name}-after.json", log, problems=options.problems)
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


def models_table(rows: list[Row]) -> str:
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


def models() -> None:
    """A language model on tasks, before and after training, measured with `tokencredit evaluate` on the same held-out problems.

    python -m tokencredit.lab.studies.training models FOLDER/*.toml --seeds 1 --jobs 3 --out FOLDER/results.json
    python -m tokencredit.lab.studies.training models FOLDER/letter-counting.toml --seeds 3 --jobs 3 --out FOLDER/results.json

    Every run is a process of its own. Rows are written as runs finish; `--jobs 0` only prints the table.
    """
    parser = parser_of(models)
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

        def keep(case: tuple[Path, int]) -> None:
            row = train_and_evaluate(*case, options, Path(runs))
            with writing:
                rows.append(row)
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(models_table([row]).splitlines()[-1], flush=True)

        list(pool.map(keep, waiting))
    print(models_table(rows))


if __name__ == "__main__":
    run_command({"grid": grid, "weights": master_weights, "models": models})

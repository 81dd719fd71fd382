"""What weights are kept in: float32 under bfloat16 passes, bfloat16, and bfloat16 rounded by chance, with equal seeds.

    python experiments/master_weights.py --model DIR --layer task.toml --seeds 3 --steps 40 --out experiments/<date>-master-weights

The layer is any file that `tokencredit train` takes (task, lengths, learning rate). Rows are kept as they come, so that an
interrupted experiment goes on where it stopped; `--seeds 0` only prints the table.
"""

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tokencredit import resolve, train
from tokencredit.config.resolve import read_toml
from tokencredit.forward.padded import trainable_parameters
from tokencredit.policy.policy import Policy
from tokencredit.storage.run_dir import describe_environment
from tokencredit.trainer.callbacks import NoCallback
from tokencredit.trainer.evaluate import Accuracy

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
    """Remembers the weights that the run began with, and looks at them once more after the first optimizer step."""

    def __init__(self) -> None:
        self.changed: Changed | None = None
        self.first: dict[str, float] | None = None

    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        self.changed = Changed(policy)

    def after_an_optimizer_step(self, *_: Any) -> None:
        if self.changed is not None and self.first is None:
            self.first = self.changed.shares()


def measure(layer: dict[str, Any], model: str, weights: str, seed: int, steps: int) -> dict[str, Any]:
    fixed = {"model": model, "seed": seed, "steps": steps, "dtype": "bfloat16", "weights": weights}
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
        "weights": weights,
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


def spread(values: list[float], digits: int = 1, scale: float = 100.0) -> str:
    if len(values) == 1:
        return f"{scale * values[0]:.{digits}f}"
    return f"{scale * mean(values):.{digits}f} ± {scale * stdev(values):.{digits}f}"


def table(rows: list[dict[str, Any]]) -> str:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            rows.append(measure(layer, options.model, weights, seed, options.steps))
            file.write_text(json.dumps(rows, indent=1) + "\n")
            last = rows[-1]
            print(
                f"{weights} seed {seed}: {last['before']['sampled']:.3f} -> {last['after']['sampled']:.3f}, "
                f"first step changed {last['changed_first']}, {last['seconds']:.0f} s",
                flush=True,
            )
    print(table(rows))


if __name__ == "__main__":
    main()

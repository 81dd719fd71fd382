"""Part `step`: a whole training step, from prompts to weights, by stage, for three recipes in turn."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.lab.speed.contenders import OPTIMIZER_STEPS
from tokencredit.lab.speed.timing import WaitingStopwatch, allocated, compiled_graphs, free, peak_bytes, ratios, spread, wait
from tokencredit.lab.speed.workload import Bench, Load, RandomRewards, Result, Shape, Shown, gib, ms, percent, save_model, times
from tokencredit.pipeline.credit import MethodState
from tokencredit.trainer.loop import step_once
from tokencredit.trainer.step import PolicyTrainer

RECIPES = ("dapo", "delta", "cancellation")
OTHER = "between stages"
WARM_UP = 2
"""Warm-up steps of every recipe."""


def load_of(bench: Bench) -> Load:
    return Load(4, 4, 6, 12) if bench.small else Load(32, 8, 64, 128)


def step_config(bench: Bench, folder: Path, load: Load, recipe: str) -> TrainConfig:
    return resolve(
        [
            {
                "recipe": recipe,
                "model": str(folder),
                "seed": bench.seed,
                "device": bench.device.type,
                "dtype": bench.dtype,
                "steps": 1000,
                "sampling": {"prompts": load.groups, "group_size": load.group_size, "max_new_tokens": load.response},
                "optimizer": {
                    "steps_per_batch": OPTIMIZER_STEPS,
                    "max_tokens": 2 * load.positions if bench.small else max(32_768, load.positions),
                    "learning_rate": 1e-6,
                },
                "diagnose": {"every": 0},
                "prompt": {"style": "plain"},
            }
        ]
    )


class Training:
    """One run of one recipe; every call is a training step."""

    def __init__(self, bench: Bench, folder: Path, shape: Shape, load: Load, recipe: str) -> None:
        config = step_config(bench, folder, load, recipe)
        self.device = bench.device
        self.trainer = PolicyTrainer(config, source=str(folder), task=RandomRewards(shape.vocab, load.prompt))
        self.number, self.methods = 0, MethodState()
        self.seconds: list[dict[str, float]] = []
        self.tokens: list[int] = []

    def __call__(self) -> None:
        watch = WaitingStopwatch(self.device)
        wait(self.device)
        began = time.perf_counter()
        batch = step_once(self.trainer, self.number, self.methods, watch=watch)
        wait(self.device)
        whole = time.perf_counter() - began
        self.number, self.methods = self.number + 1, batch.methods_after(self.methods)
        self.seconds.append(dict(watch.seconds) | {OTHER: max(0.0, whole - watch.total)})
        self.tokens.append(0 if not batch.trained or batch.credited is None else int(batch.credited.rollouts.mask.sum()))

    def forget(self) -> None:
        """Discard the measurements of the warm-up."""
        self.seconds.clear()
        self.tokens.clear()

    def totals(self) -> list[float]:
        return [sum(step.values()) for step in self.seconds]

    def to_json(self) -> dict[str, Any]:
        names = list(dict.fromkeys(name for step in self.seconds for name in step))
        whole = sum(self.totals())
        return {
            "seconds": spread(self.totals()),
            "response_tokens": median(self.tokens),
            "tokens_per_second": spread([count / total for count, total in zip(self.tokens, self.totals(), strict=True)]),
            "stages": {name: median(step.get(name, 0.0) for step in self.seconds) for name in names},
            "shares": {name: sum(step.get(name, 0.0) for step in self.seconds) / whole for name in names},
            "chosen": self.chosen(),
        }

    def chosen(self) -> dict[str, Any]:
        """What the `auto` settings resolved to on this machine."""
        sampler = self.trainer.policy.sampler
        named = "plain" if sampler is None else type(sampler).__name__
        return self.trainer.mode._asdict() | {"sampler": named, "dtype": self.trainer.config.dtype}


def train_in_turns(runs: Mapping[str, Training], *, repeats: int) -> None:
    for _ in range(repeats):
        for run in runs.values():
            run()


def measure(bench: Bench) -> Result:
    shape, load = bench.shapes[0], load_of(bench)
    bench.report(f"step: {shape.name}, {load.rows} rows, {load.prompt} + {load.response} tokens, {', '.join(RECIPES)}")
    with tempfile.TemporaryDirectory() as folder:
        save_model(shape, Path(folder), device=bench.device, load=load, seed=bench.seed)
        free(bench.device)
        before = allocated(bench.device)
        runs = {recipe: Training(bench, Path(folder), shape, load, recipe) for recipe in RECIPES}
        graphs: list[int] = []

        def train() -> None:
            for repeats in (WARM_UP, bench.repeats):
                for run in runs.values():
                    run.forget()
                graphs.append(compiled_graphs())
                train_in_turns(runs, repeats=repeats)

        began = time.perf_counter()
        peak = peak_bytes(train, bench.device, before=before)
        bench.report(f"  {(WARM_UP + bench.repeats) * len(runs)} steps in {time.perf_counter() - began:.0f} s")
    found = {
        "what": f"one training step: {load.rows} rollouts and {OPTIMIZER_STEPS} optimizer steps",
        "shape": shape._asdict(),
        "load": load._asdict(),
        "recipes": {name: run.to_json() for name, run in runs.items()},
        "over_dapo": {name: ratios(run.totals(), runs["dapo"].totals()) for name, run in runs.items()},
        "peak_bytes_of_all_three": peak,
        "graphs_compiled_during_turns": compiled_graphs() - graphs[-1],
    }
    runs.clear()
    free(bench.device)
    return found


def show(result: Result) -> list[Shown]:
    recipes, load = result["recipes"], result["load"]
    stages = list(dict.fromkeys(stage for row in recipes.values() for stage in row["stages"]))
    rows = [
        (stage, *(f"{ms(row['stages'].get(stage))} ({percent(row['shares'].get(stage))})" for row in recipes.values())) for stage in stages
    ]
    rows += [
        ("whole step", *(ms(row["seconds"]["median"]) for row in recipes.values())),
        ("response tokens/s", *(f"{row['tokens_per_second']['median']:,.0f}" for row in recipes.values())),
        ("beside dapo", *(times(result["over_dapo"][name]) for name in recipes)),
    ]
    title = (
        f"step: {result['shape']['name']}, {load['groups']} x {load['group_size']} rollouts of {load['prompt']} + {load['response']} tokens"
    )
    notes = [
        f"peak of the three runs together: {gib(result['peak_bytes_of_all_three'])}",
        "chosen: " + ", ".join(f"{name} {value}" for name, value in recipes["dapo"]["chosen"].items()),
    ]
    if result["graphs_compiled_during_turns"]:
        notes.append(f"{result['graphs_compiled_during_turns']} graphs were compiled during the measurement: measure again")
    return [Shown(title, ("", *recipes), rows, tuple(notes))]

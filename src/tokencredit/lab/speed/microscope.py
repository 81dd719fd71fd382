"""What looking costs: training steps under the microscope and plain ones in turn, of one run, as a ratio of medians."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.lab.speed.embedded import WARM_UP
from tokencredit.lab.speed.timing import spread
from tokencredit.pipeline.credit import MethodState
from tokencredit.storage.run_dir import describe_environment
from tokencredit.trainer.findings import diagnose_step
from tokencredit.trainer.loop import step_once
from tokencredit.trainer.step import PolicyTrainer
from tokencredit.trainer.token_table import label_tokens


def _measure(config: TrainConfig, steps: int) -> dict[str, list[float]]:
    trainer, methods = PolicyTrainer(config, source=config.model), MethodState()
    seconds: dict[str, list[float]] = {"plain": [], "looked at": []}
    for number in range(WARM_UP + 2 * steps):
        look = number % 2 == 1
        began = time.perf_counter()
        batch = step_once(trainer, number, methods, observe=look)
        methods = batch.methods_after(methods)
        if batch.trained and batch.observation is not None:
            collected, credited, _ = batch.assigned()
            labels = label_tokens(trainer.policy, trainer.task, collected.problems, credited.rollouts)
            diagnose_step(batch, labels, trainer.task, config, step=number + 1, history=[])
        if number >= WARM_UP:
            seconds["looked at" if look else "plain"].append(time.perf_counter() - began)
    return seconds


def run_microscope(*, steps: int, repeats: int, seed: int, device: str, recipe: str, report: Callable[[str], None]) -> dict[str, Any]:
    """A look with everything that is on by default: all findings but token values and fresh responses."""
    ratios: list[float] = []
    seconds: dict[str, list[float]] = {"plain": [], "looked at": []}
    for repeat in range(repeats):
        report(f"repeat {repeat + 1}/{repeats}: plain steps and looks in turn")
        config = resolve([{"recipe": recipe, "seed": seed + repeat, "steps": WARM_UP + 2 * steps, "device": device}])
        fresh = _measure(config, steps)
        ratios.append(median(fresh["looked at"]) / median(fresh["plain"]))
        for name, values in fresh.items():
            seconds[name] += values
    return {
        "recipe": recipe,
        "steps": steps,
        "repeats": repeats,
        "device": device,
        "seconds": {name: median(values) for name, values in seconds.items()},
        "looked_at_over_plain": spread(ratios),
        "environment": describe_environment(),
    }

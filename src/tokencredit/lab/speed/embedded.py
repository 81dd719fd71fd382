"""Part `embedded`: training steps of the embedded default by stage, what DelTA adds to them, and TRL's whole trainer.

dapo and delta take a step each in turn, and TRL runs after them in every repeat, so a slow spell of the machine affects all of them. The
reported numbers are ratios of medians. The cost of the microscope is measured the same way: observed and plain steps in turn.
"""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tokencredit.lab.speed.trl_trainer as trl_twin
from tokencredit.config import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.lab.speed.timing import spread
from tokencredit.lab.speed.workload import Result, Shown, in_range
from tokencredit.models import model_folder
from tokencredit.pipeline.credit import MethodState
from tokencredit.policy.policy import choose_device, load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample
from tokencredit.storage.run_dir import describe_environment
from tokencredit.tasks import TASKS
from tokencredit.timing import Stopwatch
from tokencredit.trainer.findings import diagnose_step
from tokencredit.trainer.loop import step_once
from tokencredit.trainer.step import PolicyTrainer
from tokencredit.trainer.token_table import label_tokens

OURS = ("dapo", "delta")
WARM_UP = 2
"""Training steps left out of the numbers: first calls allocate and compile."""


class Measured(NamedTuple):
    """One training step each: a batch of rollouts and its optimizer steps."""

    seconds: list[dict[str, float]]
    tokens: list[int]

    def stage(self, name: str) -> float:
        return median(step[name] for step in self.seconds)

    @property
    def step(self) -> float:
        return median(sum(step.values()) for step in self.seconds)


def bench_config(recipe: str, *, steps: int, seed: int, device: str) -> TrainConfig:
    """The embedded default without evaluation and token files, which TRL's trainer does not do either."""
    return resolve([{"recipe": recipe, "seed": seed, "steps": steps + WARM_UP, "tokens_every": 0, "device": device}])


def measure_ours(configs: Mapping[str, TrainConfig]) -> dict[str, Measured]:
    """Train several configurations at once, one training step of each in turn."""
    measured = {name: Measured([], []) for name in configs}
    trainers = {name: PolicyTrainer(config, source=config.model) for name, config in configs.items()}
    states = dict.fromkeys(configs, MethodState())
    for number in range(max(config.steps for config in configs.values())):
        for name, trainer in trainers.items():
            batch = step_once(trainer, number, states[name])
            states[name] = batch.methods_after(states[name])
            if number >= WARM_UP and batch.plan is not None and batch.plan.steps:
                measured[name].seconds.append(batch.watch.seconds)
                measured[name].tokens.append(sum(step.tokens for step in batch.plan.steps))
    return measured


def measure_trl(config: TrainConfig, python: Path) -> list[float]:
    """Seconds per training step of TRL's GRPOTrainer, run by another environment's python."""
    order = {
        "model": str(model_folder(config.model)),
        "steps": config.steps - WARM_UP,
        "warm_up": WARM_UP,
        "prompts": config.sampling.prompts,
        "group_size": config.sampling.group_size,
        "optimizer_steps": config.optimizer.steps_per_batch,
        "max_new_tokens": config.sampling.max_new_tokens,
        "learning_rate": config.optimizer.learning_rate,
        "seed": config.seed,
    }
    done = subprocess.run([str(python), str(Path(trl_twin.__file__)), json.dumps(order)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"TRL's trainer did not run under {python}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["seconds"]


def measure_hidden(config: TrainConfig, tries: int) -> float:
    """Seconds that keeping hidden states adds to sampling a batch: the same draws with and without, in turn."""
    policy = load_policy(config.model, device=choose_device(config.device), dtype=config.dtype)
    problems = TASKS[config.task.type](**as_kwargs(config.task)).problems(config.sampling.prompts, split="train", seed=config.seed)
    prompts = [policy.encode(problem.prompt) for problem in problems]

    def seconds(keep_hidden: bool, seed: int) -> float:
        watch = Stopwatch()
        with watch.stage("sample"):
            sample(policy, prompts, replace(SamplingParams.from_config(config, seed=seed), keep_hidden=keep_hidden))
        return watch.total

    for number in range(WARM_UP):
        seconds(True, number)
    return median(seconds(True, number) - seconds(False, number) for number in range(tries))


def delta_share(dapo: Measured, delta: Measured, hidden: float) -> float:
    """What DelTA adds to a step, as a share of it: its statistics, and keeping hidden states while sampling."""
    return (delta.stage("credit") - dapo.stage("credit") + hidden) / delta.step


def check_trl(trl_python: Path | None, device: str) -> None:
    if trl_python is not None and not trl_python.is_file():
        raise ConfigError(f"trl-python {trl_python} does not exist; `make bench` makes one, or leave it out")
    if trl_python is not None and device != "cpu":
        raise ConfigError(f"device is {device!r} but TRL is run on the CPU here; leave trl-python out, or compare on the CPU")


def measure(*, steps: int, repeats: int, seed: int, device: str, trl_python: Path | None, report: Callable[[str], None]) -> dict[str, Any]:
    check_trl(trl_python, device)
    ours: dict[str, Measured] = {name: Measured([], []) for name in OURS}
    trl: list[float] = []
    shares: list[float] = []
    ratios: list[float] = []
    for repeat in range(repeats):
        report(f"repeat {repeat + 1}/{repeats}: {' and '.join(OURS)}, a step of each in turn")
        fresh = measure_ours({name: bench_config(name, steps=steps, seed=seed + repeat, device=device) for name in OURS})
        ours = {name: Measured(ours[name].seconds + fresh[name].seconds, ours[name].tokens + fresh[name].tokens) for name in OURS}
        hidden = measure_hidden(bench_config("delta", steps=steps, seed=seed + repeat, device=device), tries=min(20, 4 * steps))
        shares.append(delta_share(fresh["dapo"], fresh["delta"], hidden))
        if trl_python is not None:
            report(f"repeat {repeat + 1}/{repeats}: TRL")
            theirs = measure_trl(bench_config("dapo", steps=steps, seed=seed + repeat, device=device), trl_python)
            trl += theirs
            ratios.append(median(theirs) / fresh["dapo"].step)
    return {
        "steps": steps,
        "batch": bench_config("dapo", steps=steps, seed=seed, device=device).sampling.model_dump(),
        "recipes": {name: _recipe_row(measured) for name, measured in ours.items()},
        "delta_share_of_step": spread(shares),
        "trl": {"seconds_per_step": median(trl), "times_slower_than_dapo": spread(ratios)} if trl else None,
    }


def _recipe_row(measured: Measured) -> dict[str, Any]:
    stages = {name: measured.stage(name) for name in measured.seconds[0]}
    rate = median(count / sum(step.values()) for count, step in zip(measured.tokens, measured.seconds, strict=True))
    return {"seconds_per_step": measured.step, "tokens_per_second": rate, "stages": stages}


def show(result: Result) -> list[Shown]:
    recipes = result["recipes"]
    rows = [
        (stage, *(f"{1000 * row['stages'][stage]:.1f} ms" for row in recipes.values())) for stage in next(iter(recipes.values()))["stages"]
    ]
    rows += [
        ("whole step", *(f"{1000 * row['seconds_per_step']:.1f} ms" for row in recipes.values())),
        ("tokens/s", *(f"{row['tokens_per_second']:,.0f}" for row in recipes.values())),
    ]
    notes = [f"DelTA adds {in_range(result['delta_share_of_step'], 100, ' %')} of a step."]
    if trl := result["trl"]:
        notes.append(
            f"TRL's GRPOTrainer: {1000 * trl['seconds_per_step']:.0f} ms for the same step, "
            f"{in_range(trl['times_slower_than_dapo'], 1, ' times')} ours (dapo)."
        )
    return [Shown("one training step: a batch of rollouts and its optimizer steps (medians)", ("", *recipes), rows, tuple(notes))]


def _measure(config: TrainConfig, steps: int) -> dict[str, list[float]]:
    trainer, methods = PolicyTrainer(config, source=config.model), MethodState()
    seconds: dict[str, list[float]] = {"plain": [], "looked at": []}
    for number in range(WARM_UP + 2 * steps):
        observe = number % 2 == 1
        began = time.perf_counter()
        batch = step_once(trainer, number, methods, observe=observe)
        methods = batch.methods_after(methods)
        if batch.trained and batch.observation is not None:
            collected, credited, _ = batch.assigned()
            labels = label_tokens(trainer.policy, trainer.task, collected.problems, credited.rollouts)
            diagnose_step(batch, labels, trainer.task, config, step=number + 1, history=[])
        if number >= WARM_UP:
            seconds["looked at" if observe else "plain"].append(time.perf_counter() - began)
    return seconds


def run_microscope(*, steps: int, repeats: int, seed: int, device: str, recipe: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Microscope observations with the default findings: all but token values and fresh responses."""
    ratios: list[float] = []
    seconds: dict[str, list[float]] = {"plain": [], "looked at": []}
    for repeat in range(repeats):
        report(f"repeat {repeat + 1}/{repeats}: plain and observed steps in turn")
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

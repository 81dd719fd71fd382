"""Replay a training step of a finished or stopped run under the microscope.

All randomness follows from (seed, purpose, step), so the nearest checkpoint and the steps since then reproduce the batch and
the weights, on a CPU to the bit. The plan that the run recorded shows whether they did.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.optim.update import OptimizerStepResult
from tokencredit.pipeline.credit import MethodState
from tokencredit.storage.checkpoints import checkpoints_in, parse_position
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir
from tokencredit.timing import Stopwatch
from tokencredit.trainer.checkpoint import load_optimizer, load_progress
from tokencredit.trainer.preflight import check_turns
from tokencredit.trainer.step import Stepper, TrainedBatch, check_visible


class Start(NamedTuple):
    step: int
    """Training steps done before the replay starts."""
    checkpoint: Path | None
    """None: the base model, before the first step."""


class ReplayedStep(NamedTuple):
    stepper: Stepper
    trained: TrainedBatch
    start: Start
    same_plan: bool | None
    """Whether the plan equals the one that the run recorded; None where the run recorded none."""


def nearest_start(folder: RunDir, step: int) -> Start:
    """The latest intact checkpoint before training step `step`, counted from 1; else the base model.

    A checkpoint inside a batch or a damaged one is skipped: a replay can start from an earlier one.
    """
    found = [Start(0, None)]
    for position, path in checkpoints_in(folder.checkpoints):
        if position.optimizer_step == 0 and 0 < position.step < step and damage(path) is None:
            found.append(Start(position.step, path))
    return max(found, key=lambda start: start.step)


def _steps_in_force(folder: RunDir, config: TrainConfig) -> Callable[[int], int]:
    """Training step, counted from 0 -> the run's `steps` at that time. A resume may change it, and the learning rate depends on it."""
    changes = [
        (resume["step"], *resume["changed"]["steps"]) for resume in folder.read("resumes.jsonl") if "steps" in resume.get("changed", {})
    ]

    def at(number: int) -> int:
        later = [old for step, old, _ in changes if number < step]
        return later[0] if later else config.steps

    return at


def _refused_steps(folder: RunDir) -> dict[int, int]:
    """Training step that a guard refused, counted from 1 -> optimizer steps done before the refusal."""
    dumps = (Path(event["dump"]) for event in folder.read("events.jsonl") if event["kind"] == "guard" and "dump" in event)
    return {position.step: position.optimizer_step for dump in dumps if (position := parse_position(dump.name)) is not None}


def _repeat_step(stepper: Stepper, number: int, state: MethodState, refused_after: int | None) -> MethodState:
    """Repeat a training step. A refused step stops after the same optimizer step as in the run, whatever the cause was."""
    if refused_after == 0:
        return state
    if refused_after is None:
        return stepper.step(number, state, Stopwatch()).state
    planned = stepper.plan(number, stepper.gather(number, Stopwatch()), state, Stopwatch())
    taken: list[OptimizerStepResult] = []
    stepper.take(number, planned, Stopwatch(), taken=taken, stop_asked=lambda: len(taken) == refused_after)
    return planned.state


def recreate(folder: RunDir, config: TrainConfig, step: int, notify: Callable[[int, int], None] = lambda done, total: None) -> ReplayedStep:
    """Replay training step `step`, counted from 1; calls `notify(done, total)` after every step."""
    last = max((row["step"] for row in folder.read("metrics.jsonl")), default=0)
    if not 1 <= step <= last:
        raise ConfigError(f"step is {step} but the run has steps 1 to {last}; give one of these")
    check_visible(config)
    start = nearest_start(folder, step)
    stepper = Stepper(config, source=config.model if start.checkpoint is None else str(start.checkpoint))
    state = MethodState()
    if start.checkpoint is not None:
        load_optimizer(stepper.optimizer, start.checkpoint)
        state = MethodState(**load_progress(start.checkpoint).stage_state)
    check_turns(stepper.task, config)
    stepper.check_gold(folder)
    schedule, refused = _steps_in_force(folder, config), _refused_steps(folder)
    for number in range(start.step, step - 1):
        stepper.config = config.model_copy(update={"steps": schedule(number)})
        state = _repeat_step(stepper, number, state, refused.get(number + 1))
        notify(number + 1 - start.step, step - start.step)
    stepper.config = config.model_copy(update={"steps": schedule(step - 1)})
    finished = None if step in refused else stepper.step(step - 1, state, Stopwatch(), look=True)
    if finished is None or finished.trained is None:
        raise ConfigError(f"step {step} of this run made no update, so there is nothing to diagnose; give another step")
    notify(step - start.step, step - start.step)
    recorded = [row.get("digest") for row in folder.read("plans.jsonl") if row["step"] == step]
    return ReplayedStep(stepper, finished.trained, start, recorded == [finished.trained.plan.digest] if recorded else None)

"""Replay a training step of a finished or stopped run under the microscope.

All randomness follows from (seed, purpose, step), so the nearest checkpoint and the steps since then reproduce the batch and
the weights, on a CPU to the bit. The plan that the run recorded shows whether they did.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.memory import ignore
from tokencredit.pipeline.credit import MethodState
from tokencredit.storage.checkpoints import checkpoints_in, parse_position
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir
from tokencredit.trainer.checkpoint import load_optimizer, load_train_state
from tokencredit.trainer.loop import prepare_batch, step_once
from tokencredit.trainer.preflight import check_turns
from tokencredit.trainer.step import PolicyTrainer, StepState, check_visible


class Start(NamedTuple):
    step: int
    """Training steps done before the replay starts."""
    checkpoint: Path | None
    """None: the base model, before the first step."""


class ReplayedStep(NamedTuple):
    trainer: PolicyTrainer
    batch: StepState
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


def _repeat_step(trainer: PolicyTrainer, number: int, methods: MethodState, refused_after: int | None) -> MethodState:
    """Repeat a training step. A refused step stops after the same optimizer step as in the run, whatever the cause was."""
    if refused_after == 0:
        return methods
    batch = StepState(number=number)
    prepare_batch(trainer, batch, methods, ignore)
    stop = (lambda: False) if refused_after is None else (lambda: len(batch.done) == refused_after)
    trainer.update(batch, stop_requested=stop)
    return batch.methods_after(methods)


def recreate(folder: RunDir, config: TrainConfig, step: int, notify: Callable[[int, int], None] = lambda done, total: None) -> ReplayedStep:
    """Replay training step `step`, counted from 1; calls `notify(done, total)` after every step."""
    last = max((row["step"] for row in folder.read("metrics.jsonl")), default=0)
    if not 1 <= step <= last:
        raise ConfigError(f"step is {step} but the run has steps 1 to {last}; give one of these")
    check_visible(config)
    start = nearest_start(folder, step)
    trainer = PolicyTrainer(config, source=config.model if start.checkpoint is None else str(start.checkpoint))
    methods = MethodState()
    if start.checkpoint is not None:
        load_optimizer(trainer.optimizer, start.checkpoint)
        methods = load_train_state(start.checkpoint).methods
    check_turns(trainer.task, config)
    trainer.check_gold(folder)
    schedule, refused = _steps_in_force(folder, config), _refused_steps(folder)
    for number in range(start.step, step - 1):
        trainer.config = config.model_copy(update={"steps": schedule(number)})
        methods = _repeat_step(trainer, number, methods, refused.get(number + 1))
        notify(number + 1 - start.step, step - start.step)
    trainer.config = config.model_copy(update={"steps": schedule(step - 1)})
    batch = None if step in refused else step_once(trainer, step - 1, methods, observe=True)
    if batch is None or not batch.trained or batch.plan is None:
        raise ConfigError(f"step {step} of this run made no update, so there is nothing to diagnose; give another step")
    notify(step - start.step, step - start.step)
    recorded = [row.get("digest") for row in folder.read("plans.jsonl") if row["step"] == step]
    return ReplayedStep(trainer, batch, start, recorded == [batch.plan.digest] if recorded else None)

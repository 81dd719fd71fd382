"""A training step of a finished or stopped run, taken again under the microscope.

Everything random follows from (seed, purpose, step), so the nearest checkpoint and the steps since then give the batch and the
weights back; on a CPU to the bit. Whether they did is checked against what the run had written down.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.memory import ignore
from tokencredit.pipeline.credit import MethodState
from tokencredit.storage.checkpoints import checkpoints_in, named_place
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir
from tokencredit.trainer.checkpoint import load_optimizer, load_train_state
from tokencredit.trainer.loop import prepare_batch, step_once
from tokencredit.trainer.preflight import check_turns
from tokencredit.trainer.step import PolicyTrainer, StepState, check_visible


class Start(NamedTuple):
    step: int
    """Training steps done there."""
    checkpoint: Path | None
    """None: the base, before the first step."""


class Recreated(NamedTuple):
    trainer: PolicyTrainer
    batch: StepState
    start: Start
    same_plan: bool | None
    """Whether the plan is the one the run wrote down; None where it wrote none."""


def nearest_start(folder: RunDir, step: int) -> Start:
    """The latest checkpoint from which training step `step` (from 1) is still to come."""
    found = [Start(0, None)]
    for place, path in checkpoints_in(folder.checkpoints):
        # One in the middle of a batch, or damaged, is passed over: an earlier one, or the base, will do.
        if place.optimizer_step == 0 and 0 < place.step < step and damage(path) is None:
            found.append(Start(place.step, path))
    return max(found, key=lambda start: start.step)


def _steps_in_force(folder: RunDir, config: TrainConfig) -> Callable[[int], int]:
    """The length of the run as it was thought to be at a training step, counted from 0: the learning rate falls with it."""
    changes = [
        (resume["step"], *resume["changed"]["steps"]) for resume in folder.read("resumes.jsonl") if "steps" in resume.get("changed", {})
    ]

    def at(number: int) -> int:
        later = [old for step, old, _ in changes if number < step]
        return later[0] if later else config.steps

    return at


def _taken_of_refused(folder: RunDir) -> dict[int, int]:
    """Training step, counted from 1 -> optimizer steps taken before a guard refused one."""
    dumps = (Path(event["dump"]) for event in folder.read("events.jsonl") if event["kind"] == "guard" and "dump" in event)
    return {place.step: place.optimizer_step for dump in dumps if (place := named_place(dump.name)) is not None}


def _again(trainer: PolicyTrainer, number: int, methods: MethodState, refused_after: int | None) -> MethodState:
    """A training step as the run took it; one that was refused stops where it did then, whatever the cause was."""
    if refused_after == 0:
        return methods
    batch = StepState(number=number)
    prepare_batch(trainer, batch, methods, ignore)
    stop = (lambda: False) if refused_after is None else (lambda: len(batch.done) == refused_after)
    trainer.update(batch, stop_requested=stop)
    return batch.methods_after(methods)


def recreate(folder: RunDir, config: TrainConfig, step: int, on_step: Callable[[int, int], None] = lambda done, total: None) -> Recreated:
    """Training step `step`, counted from 1; `on_step(done, total)` is called after every step taken on the way."""
    taken = max((row["step"] for row in folder.read("metrics.jsonl")), default=0)
    if not 1 <= step <= taken:
        raise ConfigError(f"step is {step} but the run has taken steps 1 to {taken}")
    check_visible(config)
    start = nearest_start(folder, step)
    trainer = PolicyTrainer(config, source=config.model if start.checkpoint is None else str(start.checkpoint))
    methods = MethodState()
    if start.checkpoint is not None:
        load_optimizer(trainer.optimizer, start.checkpoint)
        methods = load_train_state(start.checkpoint).methods
    check_turns(trainer.task, config)
    trainer.check_gold(folder)
    schedule, refused = _steps_in_force(folder, config), _taken_of_refused(folder)
    for number in range(start.step, step - 1):
        trainer.config = config.model_copy(update={"steps": schedule(number)})
        methods = _again(trainer, number, methods, refused.get(number + 1))
        on_step(number + 1 - start.step, step - start.step)
    trainer.config = config.model_copy(update={"steps": schedule(step - 1)})
    batch = None if step in refused else step_once(trainer, step - 1, methods, observe=True)
    if batch is None or not batch.trained or batch.plan is None:
        raise ConfigError(f"step {step} of this run had nothing to learn from, so no update to observe; name another step")
    on_step(step - start.step, step - start.step)
    written = [row.get("digest") for row in folder.read("plans.jsonl") if row["step"] == step]
    return Recreated(trainer, batch, start, written == [batch.plan.digest] if written else None)

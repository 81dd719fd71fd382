"""A training step of a finished or stopped run, taken again under the microscope.

Everything random follows from (seed, purpose, step), so the nearest checkpoint and the steps since then give the batch and the
weights back; on a CPU to the bit. Whether they did is checked against what the run had written down.
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
    """Training steps done there."""
    checkpoint: Path | None
    """None: the base, before the first step."""


class Recreated(NamedTuple):
    stepper: Stepper
    trained: TrainedBatch
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
    return {place.step: place.optimizer_step for dump in dumps if (place := parse_position(dump.name)) is not None}


def _again(stepper: Stepper, number: int, state: MethodState, refused_after: int | None) -> MethodState:
    """A training step as the run took it; one that was refused stops where it did then, whatever the cause was."""
    if refused_after == 0:
        return state
    if refused_after is None:
        return stepper.step(number, state, Stopwatch()).state
    planned = stepper.plan(number, stepper.gather(number, Stopwatch()), state, Stopwatch())
    taken: list[OptimizerStepResult] = []
    stepper.take(number, planned, Stopwatch(), taken=taken, stop_asked=lambda: len(taken) == refused_after)
    return planned.state


def recreate(folder: RunDir, config: TrainConfig, step: int, tell: Callable[[int, int], None] = lambda done, total: None) -> Recreated:
    """Training step `step`, counted from 1; `tell(done, total)` hears of every step taken on the way."""
    taken = max((row["step"] for row in folder.read("metrics.jsonl")), default=0)
    if not 1 <= step <= taken:
        raise ConfigError(f"step is {step} but the run has taken steps 1 to {taken}")
    check_visible(config)
    start = nearest_start(folder, step)
    stepper = Stepper(config, source=config.model if start.checkpoint is None else str(start.checkpoint))
    state = MethodState()
    if start.checkpoint is not None:
        load_optimizer(stepper.optimizer, start.checkpoint)
        state = MethodState(**load_progress(start.checkpoint).stage_state)
    check_turns(stepper.task, config)
    stepper.check_gold(folder)
    schedule, refused = _steps_in_force(folder, config), _taken_of_refused(folder)
    for number in range(start.step, step - 1):
        stepper.config = config.model_copy(update={"steps": schedule(number)})
        state = _again(stepper, number, state, refused.get(number + 1))
        tell(number + 1 - start.step, step - start.step)
    stepper.config = config.model_copy(update={"steps": schedule(step - 1)})
    finished = None if step in refused else stepper.step(step - 1, state, Stopwatch(), look=True)
    if finished is None or finished.trained is None:
        raise ConfigError(f"step {step} of this run had nothing to learn from, so no update to look at; name another step")
    tell(step - start.step, step - start.step)
    written = [row.get("digest") for row in folder.read("plans.jsonl") if row["step"] == step]
    return Recreated(stepper, finished.trained, start, written == [finished.trained.plan.digest] if written else None)

"""A training step of a finished or stopped run, taken again under the microscope.

Everything random follows from (seed, purpose, step), so the nearest checkpoint and the steps since then give the batch and the
weights back; on a CPU to the bit. Whether they did is checked against what the run had written down.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokencredit.config import TrainConfig
from tokencredit.engine.crediting import StageState
from tokencredit.engine.local.checkpoint import load_optimizer, load_progress
from tokencredit.engine.local.step import Stepper, TrainedBatch
from tokencredit.engine.local.stopwatch import Stopwatch
from tokencredit.errors import ConfigError
from tokencredit.record import RunFolder
from tokencredit.storage.checkpoints import checkpoints_in
from tokencredit.storage.manifest import damage


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


def nearest_start(folder: RunFolder, step: int) -> Start:
    """The latest checkpoint from which training step `step` (from 1) is still to come."""
    found = [Start(0, None)]
    for place, path in checkpoints_in(folder.checkpoints):
        # One in the middle of a batch, or damaged, is passed over: an earlier one, or the base, will do.
        if place.optimizer_step == 0 and 0 < place.step < step and damage(path) is None:
            found.append(Start(place.step, path))
    return max(found, key=lambda start: start.step)


def recreate(folder: RunFolder, config: TrainConfig, step: int, tell: Callable[[int, int], None] = lambda done, total: None) -> Recreated:
    """Training step `step`, counted from 1; `tell(done, total)` hears of every step taken on the way."""
    taken = max((row["step"] for row in folder.read("metrics.jsonl")), default=0)
    if not 1 <= step <= taken:
        raise ConfigError(f"step is {step} but the run has taken steps 1 to {taken}")
    start = nearest_start(folder, step)
    stepper = Stepper(config, source=config.model if start.checkpoint is None else str(start.checkpoint))
    state = StageState()
    if start.checkpoint is not None:
        load_optimizer(stepper.optimizer, start.checkpoint)
        state = StageState(**load_progress(start.checkpoint).stage_state)
    for number in range(start.step, step - 1):
        state = stepper.step(number, state, Stopwatch()).state
        tell(number + 1 - start.step, step - start.step)
    finished = stepper.step(step - 1, state, Stopwatch(), look=True)
    if finished.trained is None:
        raise ConfigError(f"step {step} of this run had nothing to learn from, so no update to look at; name another step")
    tell(step - start.step, step - start.step)
    written = [row.get("digest") for row in folder.read("plans.jsonl") if row["step"] == step]
    return Recreated(stepper, finished.trained, start, written == [finished.trained.plan.digest] if written else None)

"""Weights & Biases. Login, online or offline mode and the server come from wandb's own settings (WANDB_MODE, WANDB_API_KEY, ...)."""

import os
from collections.abc import Mapping

import wandb

from tokencredit.trackers import TrackedRun
from tokencredit.trackers.callback import quiet

SECONDS_TO_FINISH = 60.0
"""Limit of the wait for wandb's server at the end of a run; wandb has none. Unsent data stays on disk for `wandb sync`."""


class WandbTracker:
    """wandb accepts each training step once. Offline it does not know which steps it has, so each of its folders holds all steps."""

    def __init__(self, run: TrackedRun) -> None:
        settings = wandb.Settings(console="off", silent=True, finish_timeout=SECONDS_TO_FINISH, finish_timeout_raises=True)
        with quiet():
            self.run = wandb.init(
                project=run.project,
                id=run.id,
                name=run.name,
                resume="allow",
                dir=None if "WANDB_DIR" in os.environ else str(run.folder),
                config=dict(run.config),
                allow_val_change=True,
                settings=settings,
            )
            self.next_step = self.run.step

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=step, commit=True)

    def note(self, step: int, kind: str, message: str) -> None:
        """Events appear in the Logs tab."""
        self.run.write_logs(f"step {step}  {kind}: {message}")

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.summary.update(dict(numbers))

    def close(self, *, finished: bool) -> None:
        with quiet():
            self.run.finish(exit_code=0 if finished else 1)

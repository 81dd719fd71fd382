"""Weights & Biases. Who is logged in, online or offline, and where to: wandb's own settings (WANDB_MODE, WANDB_API_KEY, ...)."""

import os
from collections.abc import Mapping

import wandb

from tokencredit.trackers import Tracked
from tokencredit.trackers.callback import quiet

SECONDS_TO_FINISH = 60.0
"""At the end of a run wandb would wait for its server without limit. What was not sent is on the disk, for `wandb sync`."""


class WandbTracker:
    """Its step is the training step, which it takes once. Offline it cannot tell what it has, so every folder holds the whole run."""

    def __init__(self, run: Tracked) -> None:
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
        """In the tab for logs."""
        self.run.write_logs(f"step {step}  {kind}: {message}")

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.summary.update(dict(numbers))

    def close(self, *, finished: bool) -> None:
        with quiet():
            self.run.finish(exit_code=0 if finished else 1)

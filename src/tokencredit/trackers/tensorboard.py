"""TensorBoard: writes event files into the run folder. View them with `tensorboard --logdir RUN`."""

import json
from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from tokencredit.trackers import TrackedRun


class TensorboardTracker:
    """A resumed run writes a new event file, which hides (`purge_step`) the repeated steps of the earlier files."""

    def __init__(self, run: TrackedRun) -> None:
        folder = run.folder / "tensorboard"
        self.next_step = run.step + 1 if run.step and folder.exists() else 0
        self.writer = SummaryWriter(str(folder), purge_step=self.next_step)
        self.writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2)}\n```", run.step)
        self.writer.flush()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)
        # A kill would lose what is still in the writer's queue.
        self.writer.flush()

    def note(self, step: int, kind: str, message: str) -> None:
        self.writer.add_text(f"events/{kind}", message, step)
        self.writer.flush()

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        self.log(step, numbers)

    def close(self, *, finished: bool) -> None:
        self.writer.close()

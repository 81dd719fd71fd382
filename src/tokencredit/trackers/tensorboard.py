"""TensorBoard: event files in the run folder. Read them with `tensorboard --logdir RUN`."""

import json
from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from tokencredit.trackers import Tracked


class TensorboardTracker:
    """A resumed run writes a file of its own that hides what files before it hold of later steps."""

    def __init__(self, run: Tracked) -> None:
        folder = run.folder / "tensorboard"
        self.next_step = run.step + 1 if run.step and folder.exists() else 0
        self.writer = SummaryWriter(str(folder), purge_step=self.next_step)
        self.writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2)}\n```", run.step)
        self.writer.flush()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)
        # A killed run would miss what is still in the writer's queue.
        self.writer.flush()

    def note(self, step: int, kind: str, message: str) -> None:
        self.writer.add_text(f"events/{kind}", message, step)
        self.writer.flush()

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        self.log(step, numbers)

    def close(self, *, finished: bool) -> None:
        self.writer.close()

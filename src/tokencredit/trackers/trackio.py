"""Trackio: logs to a local database unless trackio's own settings (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL) name another place."""

from collections.abc import Mapping

import trackio

from tokencredit.trackers import TrackedRun
from tokencredit.trackers.callback import quiet


class TrackioTracker:
    """Only adds rows: trackio cannot replace a row."""

    def __init__(self, run: TrackedRun) -> None:
        with quiet():
            # trackio finds a run by name. Without the id, two runs of the same name would be merged.
            self.run = trackio.init(run.project, name=f"{run.name}-{run.id}", resume="allow", config=dict(run.config), embed=False)
        self.next_step: int = getattr(self.run, "_next_step", 0)  # trackio has no public attribute for it

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=step)

    def note(self, step: int, kind: str, message: str) -> None:
        with quiet():
            self.run.alert(title=kind, text=message, step=step)

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=step)

    def close(self, *, finished: bool) -> None:
        with quiet():
            trackio.finish()

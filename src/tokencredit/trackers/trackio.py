"""Trackio: a database on this machine, unless its own settings (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL) say otherwise."""

from collections.abc import Mapping

import trackio

from tokencredit.trackers import Tracked
from tokencredit.trackers.callback import quiet


class TrackioTracker:
    """Adds rows and never replaces one."""

    def __init__(self, run: Tracked) -> None:
        with quiet():
            # Runs are found by name there; without the id, runs of one name in two places would be taken for one.
            self.run = trackio.init(run.project, name=f"{run.name}-{run.id}", resume="allow", config=dict(run.config), embed=False)
        self.next_step: int = getattr(self.run, "_next_step", 0)  # no public name for it

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

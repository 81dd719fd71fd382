"""Experiment trackers: the protocol that a tracker implements, and the table of the shipped ones.

A tracker package (trackio, wandb, tensorboard) is imported only if the configuration names it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol

from tokencredit.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a tracker opens: its identity, its configuration, and the number of finished training steps."""

    folder: Path
    id: str
    """A resumed run keeps its id."""
    project: str
    name: str
    config: Mapping[str, Any]
    step: int
    """Finished training steps: 0, or more for a resumed run. The tracker may hold later steps from before a kill; the run repeats those."""


class Tracker(Protocol):
    """Receives the numbers of a run. If a method raises, the run drops the tracker and continues."""

    next_step: int
    """The first step that the tracker does not have yet, read once when it is opened. Earlier steps are not logged again."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a training step; step 0 is the evaluation before training."""
        ...

    def note(self, step: int, kind: str, message: str) -> None:
        """Log an event as text, such as a warning."""
        ...

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of the run's result."""
        ...

    def close(self, *, finished: bool) -> None:
        """Write everything before returning. `finished` is False if the run stopped early; such a run may be resumed."""
        ...


class OpenTracker(Protocol):
    def __call__(self, run: TrackedRun) -> Tracker: ...


TRACKERS = {
    "trackio": "tokencredit.trackers.trackio:TrackioTracker",
    "wandb": "tokencredit.trackers.wandb:WandbTracker",
    "tensorboard": "tokencredit.trackers.tensorboard:TensorboardTracker",
}
"""Name of the tracker, which is also the name of its package -> module and class."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError if the package of a tracker is not installed. Called before anything is loaded or written."""
    for name in names:
        try:
            # find_spec would not do: wandb leaves folders named wandb behind, which it would take for the package.
            metadata.version(name)
        except metadata.PackageNotFoundError:
            raise ConfigError(f'track.to has {name}, which is not installed; leave it out, or: pip install "tokencredit[track]"') from None


def tracker_class(name: str) -> OpenTracker:
    module, _, class_name = TRACKERS[name].partition(":")
    return getattr(import_module(module), class_name)

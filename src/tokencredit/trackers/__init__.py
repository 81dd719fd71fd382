"""Experiment trackers that are told the numbers of a run. Each package is imported only where it is chosen.

What a tracker is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol

from tokencredit.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The run that is tracked, and where it stands."""

    folder: Path
    id: str
    """The same when the run goes on."""
    project: str
    name: str
    config: Mapping[str, Any]
    step: int
    """Training steps that are done: 0, or more for a resumed run. Steps after it may have been logged before; they are taken again."""


class Tracker(Protocol):
    """Any method may raise: the tracker is left out then, and the run goes on."""

    next_step: int
    """When it is opened: the first step that it does not have. Steps before it are not logged again, those from it on are."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a training step; step 0 is before training."""
        ...

    def note(self, step: int, kind: str, message: str) -> None:
        """Something a person should know of."""
        ...

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        """What the whole run came to."""
        ...

    def close(self, *, finished: bool) -> None:
        """Everything is written when this returns. Not finished: the run stopped, and may go on."""
        ...


class OpenTracker(Protocol):
    def __call__(self, run: Tracked) -> Tracker: ...


TRACKERS = {
    "trackio": "tokencredit.trackers.trackio:TrackioTracker",
    "wandb": "tokencredit.trackers.wandb:WandbTracker",
    "tensorboard": "tokencredit.trackers.tensorboard:TensorboardTracker",
}
"""Name, which is that of its package too -> where its class lives."""


def require_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose package is not installed, before anything is loaded or written."""
    for name in names:
        try:
            # Not find_spec: wandb leaves folders of its own name behind, which would pass for the package.
            metadata.version(name)
        except metadata.PackageNotFoundError:
            raise ConfigError(f'track.to has {name}, which is not installed; leave it out, or: pip install "tokencredit[track]"') from None


def tracker_class(name: str) -> OpenTracker:
    module, _, found = TRACKERS[name].partition(":")
    return getattr(import_module(module), found)

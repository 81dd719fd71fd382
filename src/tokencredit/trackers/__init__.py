"""Experiment trackers that are told the numbers of a run. Each package is imported only where it is chosen."""

from collections.abc import Sequence
from importlib import import_module, metadata

from tokencredit.errors import ConfigError
from tokencredit.trackers.protocol import OpenTracker

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

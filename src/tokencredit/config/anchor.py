"""Paths of a configuration made absolute when a run begins, so that it can go on from anywhere and means the same then."""

from pathlib import Path
from typing import TypeGuard

from tokencredit.config.train import TrainConfig
from tokencredit.models import pinned_name

PATHS_OF_TASKS = ("path", "held_out_path")


def anchored(config: TrainConfig, stored: TrainConfig | None = None) -> TrainConfig:
    """The model, unless it is a shipped base or what a run already has, and the files of the task.

    A run given as the model is taken for its best checkpoint of now: which one that is may change as it goes on.
    """
    model = config.model
    if stored is None or model != stored.model:
        model = pinned_name(model)
    found = {name: getattr(config.task, name, None) for name in PATHS_OF_TASKS}
    task = config.task.model_copy(update={name: str(Path(path).absolute()) for name, path in found.items() if _is_path(path, config)})
    return config.model_copy(update={"model": model, "task": task})


def _is_path(given: str | None, config: TrainConfig) -> TypeGuard[str]:
    """A task of one's own is a file, file.py:Name, or a module, which is found by its name."""
    return given is not None and (config.task.type != "own" or given.rpartition(":")[0].endswith(".py"))

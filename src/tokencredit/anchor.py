"""Paths of a configuration made absolute when a run begins, so that it can go on from anywhere."""

from pathlib import Path

from tokencredit.bases import shipped_bases
from tokencredit.config import TrainConfig

PATHS_OF_TASKS = ("path", "held_out_path")


def anchored(config: TrainConfig) -> TrainConfig:
    """The model, unless it is a shipped base, and the files of the task."""
    model = config.model if config.model in shipped_bases() else str(Path(config.model).absolute())
    found = {name: getattr(config.task, name, None) for name in PATHS_OF_TASKS}
    task = config.task.model_copy(update={name: str(Path(path).absolute()) for name, path in found.items() if path is not None})
    return config.model_copy(update={"model": model, "task": task})

"""Paths of a configuration made absolute when a run begins, so that it can go on from anywhere and means the same then."""

from pathlib import Path

from tokencredit.bases import model_folder, shipped_bases
from tokencredit.config import TrainConfig

PATHS_OF_TASKS = ("path", "held_out_path")


def anchored(config: TrainConfig, stored: TrainConfig | None = None) -> TrainConfig:
    """The model, unless it is a shipped base or what a run already has, and the files of the task.

    A run given as the model is taken for its best checkpoint of now: which one that is may change as it goes on.
    """
    model = config.model
    if model not in shipped_bases() and (stored is None or model != stored.model):
        model = str(model_folder(model).absolute())
    found = {name: getattr(config.task, name, None) for name in PATHS_OF_TASKS}
    task = config.task.model_copy(update={name: str(Path(path).absolute()) for name, path in found.items() if path is not None})
    return config.model_copy(update={"model": model, "task": task})

"""A run folder given as a model brings its own configuration: how its prompts were put, and how it sampled."""

from pathlib import Path
from typing import Any

from tokencredit.config.messages import shortened
from tokencredit.config.resolve import read_toml
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError

HOW_IT_RUNS = ("dtype", "weights")
"""What is taken from a run even where another task is asked."""


def is_run(name: str) -> bool:
    try:
        return (Path(name) / "config.toml").is_file() and (Path(name) / "checkpoints").is_dir()
    except (OSError, ValueError):
        return False


def stored_layer(name: str, task: str | None = None) -> dict[str, Any]:
    """The run's config.toml, or what of it holds for a `task` of another type.

    A folder may come from anybody: what would run code (the model's, a program's, a task's own) is not taken from it, but allowed anew.
    """
    layer = read_toml(Path(name) / "config.toml")
    layer.pop("trust_remote_code", None)
    stored = layer.get("task")
    if not isinstance(stored, dict):
        return layer
    if task is not None and task != stored.get("type"):
        return {field: layer[field] for field in HOW_IT_RUNS if field in layer}
    layer["task"] = {field: value for field, value in stored.items() if field != "allow_code_execution"}
    return layer


def refuse_own_task(name: str, config: TrainConfig, *, instead: str) -> None:
    """A task of somebody's own is a program, which nobody allowed by naming a folder."""
    if config.task.type == "own":
        raise ConfigError(f"run {name} has a task of somebody's own, which is code, {shortened(config.task.path)}; {instead}")

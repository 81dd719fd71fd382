"""Find a model's folder by its name: a shipped base, `smollm2`, a folder, a run folder, or an id on the Hugging Face hub.

A model of the hub comes from the hub's local cache if it is there, else it is downloaded; weights as safetensors only.
Imports no torch.
"""

import re
from pathlib import Path
from typing import TypeGuard

from tokencredit.bases import base_folder, shipped_bases
from tokencredit.config.resume import PATHS_OF_TASKS
from tokencredit.config.task import OwnTask
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.models.smollm import NAME as SMOLLM
from tokencredit.models.smollm import smollm_folder
from tokencredit.storage.checkpoints import best_model
from tokencredit.text import suggest

WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt", "README.md")
NEEDED = ("config.json", "tokenizer_config.json", "*.safetensors")
"""A snapshot in the cache may hold single files only; without these it is no complete model."""
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
SECONDS = 10.0
"""Timeout after which the hub counts as unreachable."""


def model_folder(name: str) -> Path:
    """The folder of the model, downloaded or converted first where needed. ConfigError for a name that is no model."""
    if name in shipped_bases():
        return base_folder(name)
    if name == SMOLLM:
        return smollm_folder()
    folder = Path(name)
    if not _is_folder(folder):
        if is_hub_id(name):
            return _checked(hub_folder(name))
        name = name if len(name) <= 200 else f"{name[:60]}..."
        raise ConfigError(
            f"model {name!r} is neither a shipped base nor a folder nor a hub id (owner/name); {suggest(name, [*shipped_bases(), SMOLLM])}"
        )
    if (folder / "config.toml").is_file() and (folder / "checkpoints").is_dir():
        best = best_model(folder)
        if best is None:
            raise ConfigError(f"model {name!r} is a run without an intact checkpoint; give a folder with a model")
        return best
    return _checked(folder)


def pinned_name(name: str) -> str:
    """A name that means the same model from any working folder and at any later time.

    A run folder becomes its best checkpoint at this moment: the best one may change while the run continues.
    """
    if name in shipped_bases() or name == SMOLLM:
        return name
    folder = model_folder(name)
    return pinned_id(name, folder) if is_hub_id(name) and not _is_folder(Path(name)) else str(folder.absolute())


def anchored(config: TrainConfig, stored: TrainConfig | None = None) -> TrainConfig:
    """The config with `pinned_name` of the model and absolute paths of the task's files.

    `stored`: the config of the run that is resumed; a model equal to its model is not pinned again.
    """
    model = config.model
    if stored is None or model != stored.model:
        model = pinned_name(model)
    found = {name: getattr(config.task, name, None) for name in PATHS_OF_TASKS}
    task = config.task.model_copy(update={name: str(Path(path).absolute()) for name, path in found.items() if _is_path(path, config)})
    return config.model_copy(update={"model": model, "task": task})


def _is_path(given: str | None, config: TrainConfig) -> TypeGuard[str]:
    """Whether the value is a file path. The path of task `own` is file.py:Name, or a module, which is no path."""
    return given is not None and (not isinstance(config.task, OwnTask) or given.rpartition(":")[0].endswith(".py"))


def _checked(folder: Path) -> Path:
    missing = [part for part in ("config.json", "tokenizer_config.json") if not (folder / part).is_file()]
    if missing:
        raise ConfigError(f"model folder {folder} has no {' and no '.join(missing)}; give a folder written by save_pretrained")
    return folder


def _is_folder(path: Path) -> bool:
    """False also for a name that no file system accepts."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_hub_id(name: str) -> bool:
    """Whether the name has the form owner/name or owner/name@revision."""
    return len(name) <= 200 and _ID.fullmatch(name) is not None


def hub_folder(name: str) -> Path:
    """The snapshot's folder. The local cache is tried first, so that a run needs no network once its model was downloaded."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    request = {"repo_id": repository, "revision": revision or None, "allow_patterns": list(WANTED)}
    try:
        folder = Path(snapshot_download(**request, local_files_only=True))
        if all(any(folder.glob(part)) for part in NEEDED):
            return folder
    except Exception:
        pass  # It is missing or incomplete.
    try:
        return Path(snapshot_download(**request, etag_timeout=SECONDS))
    except Exception as problem:  # The library, its transport and the hub raise different exceptions.
        reason = str(problem).strip().split("\n")[0][:200] or type(problem).__name__
        raise ConfigError(
            f"model {name!r} is neither a folder nor in the hub's local cache, and it cannot be downloaded ({reason}); "
            "give a folder written by save_pretrained, or download it where the hub can be reached"
        ) from None


def pinned_id(name: str, folder: Path) -> str:
    """The id with the commit of the cached snapshot, because a branch may move."""
    return f"{name.partition('@')[0]}@{folder.name}"


__all__ = ["model_folder", "pinned_name"]

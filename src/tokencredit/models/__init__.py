"""How a model is named: a shipped base, `smollm2`, a folder, a run, or an id on the Hugging Face hub.

From a model's name to the folder that holds it. Imports no torch.

A model of the Hugging Face hub: from its local cache if it is there, else fetched. Weights as safetensors only.
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
"""Somebody may have fetched single files: without these a snapshot is no model yet."""
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
SECONDS = 10.0
"""Before the hub counts as out of reach."""


def is_hub_id(name: str) -> bool:
    """owner/name, with @revision behind it or not."""
    return len(name) <= 200 and _ID.fullmatch(name) is not None


def hub_folder(name: str) -> Path:
    """The local cache is asked first, so that a run needs no network once its model was fetched."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    asked = {"repo_id": repository, "revision": revision or None, "allow_patterns": list(WANTED)}
    try:
        folder = Path(snapshot_download(**asked, local_files_only=True))
        if all(any(folder.glob(part)) for part in NEEDED):
            return folder
    except Exception:
        pass  # It is not there, or not whole.
    try:
        return Path(snapshot_download(**asked, etag_timeout=SECONDS))
    except Exception as problem:  # the library, its transport and the hub each have errors of their own
        said = str(problem).strip().split("\n")[0][:200] or type(problem).__name__
        raise ConfigError(
            f"model {name!r} is neither a folder nor in the hub's local cache, and it cannot be fetched ({said}); "
            "give a folder written by save_pretrained, or fetch it where the hub can be reached"
        ) from None


def pinned_id(name: str, folder: Path) -> str:
    """With the commit that is in the cache: a branch may move on."""
    return f"{name.partition('@')[0]}@{folder.name}"


def _is_folder(path: Path) -> bool:
    """A name that no file system would take is no folder."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def model_folder(name: str) -> Path:
    """Anything that is no model is refused; what must be fetched or converted first is, once."""
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
            f"model {name!r} is neither a shipped base nor a folder nor an id on the hub (owner/name); "
            f"{suggest(name, [*shipped_bases(), SMOLLM])}"
        )
    if (folder / "config.toml").is_file() and (folder / "checkpoints").is_dir():
        best = best_model(folder)
        if best is None:
            raise ConfigError(f"model {name!r} is a run without a whole checkpoint; name a folder with a model")
        return best
    return _checked(folder)


def _checked(folder: Path) -> Path:
    missing = [part for part in ("config.json", "tokenizer_config.json") if not (folder / part).is_file()]
    if missing:
        raise ConfigError(f"model folder {folder} has no {' and no '.join(missing)}; give a folder written by save_pretrained")
    return folder


def pinned_name(name: str) -> str:
    """A name that means the same model from anywhere and later on.

    A run given as the model is taken for its best checkpoint of now: which one that is may change as it goes on.
    """
    if name in shipped_bases() or name == SMOLLM:
        return name
    folder = model_folder(name)
    return pinned_id(name, folder) if is_hub_id(name) and not _is_folder(Path(name)) else str(folder.absolute())


__all__ = ["model_folder", "pinned_name"]


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
    return given is not None and (not isinstance(config.task, OwnTask) or given.rpartition(":")[0].endswith(".py"))

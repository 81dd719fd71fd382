"""From a model's name to the folder that holds it. Imports no torch."""

from pathlib import Path

from tokencredit.bases import base_folder, shipped_bases
from tokencredit.errors import ConfigError
from tokencredit.models.hub import hub_folder, is_hub_id, pinned_id
from tokencredit.models.smollm import NAME as SMOLLM
from tokencredit.models.smollm import smollm_folder
from tokencredit.storage.checkpoints import best_model
from tokencredit.text import nearest


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
            f"{nearest(name, [*shipped_bases(), SMOLLM])}"
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

"""Base policies that ship with the package (made by scripts/make_bases.py), and how a model is named."""

from importlib.resources import files
from pathlib import Path

from tokencredit.errors import ConfigError
from tokencredit.nearest import nearest
from tokencredit.storage.checkpoints import best_model


def shipped_bases() -> list[str]:
    folder = files("tokencredit").joinpath("bases")
    return sorted(entry.name for entry in folder.iterdir() if entry.joinpath("config.json").is_file())


def _is_folder(path: Path) -> bool:
    """A name that no file system would take is no folder."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def model_folder(name: str) -> Path:
    """A shipped base by name, else a folder that holds a model or a run (its best checkpoint); anything else is refused."""
    if name in shipped_bases():
        return Path(str(files("tokencredit").joinpath("bases", name)))
    folder = Path(name)
    if not _is_folder(folder):
        name = name if len(name) <= 200 else f"{name[:60]}..."
        raise ConfigError(f"model {name!r} is neither a shipped base nor a folder; {nearest(name, shipped_bases())}")
    if (folder / "config.toml").is_file() and (folder / "checkpoints").is_dir():
        best = best_model(folder)
        if best is None:
            raise ConfigError(f"model {name!r} is a run without a whole checkpoint; name a folder with a model")
        return best
    missing = [part for part in ("config.json", "tokenizer_config.json") if not (folder / part).is_file()]
    if missing:
        raise ConfigError(f"model folder {folder} has no {' and no '.join(missing)}; give a folder written by save_pretrained")
    return folder

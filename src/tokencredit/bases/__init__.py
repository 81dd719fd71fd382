"""The base policies that ship with the package; scripts/make_bases.py trains them."""

from importlib.resources import files
from pathlib import Path


def shipped_bases() -> list[str]:
    folder = files("tokencredit").joinpath("bases")
    return sorted(entry.name for entry in folder.iterdir() if entry.joinpath("config.json").is_file())


def base_folder(name: str) -> Path:
    return Path(str(files("tokencredit").joinpath("bases", name)))

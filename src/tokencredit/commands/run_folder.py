"""Choose the folder of a run, and check output files. A folder that is not empty is never used."""

import itertools
import os
from pathlib import Path

from tokencredit.errors import ConfigError


def _numbered(parent: Path, name: str) -> Path:
    """runs/007-delta after runs/006-grpo: the highest existing number plus one."""
    numbers = [int(entry.name.split("-", 1)[0]) for entry in parent.glob("[0-9]*-*") if entry.name.split("-", 1)[0].isdigit()]
    return parent / f"{max(numbers, default=0) + 1:03}-{name}"


def _check_creatable(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ConfigError(f"out {path} is a file; give a folder")
    ancestor = next(parent for parent in path.absolute().parents if parent.exists())
    if not ancestor.is_dir():
        raise ConfigError(f"out {path} lies below {ancestor}, which is a file; give a folder")
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise ConfigError(f"out {path} cannot be created: {ancestor} is not writable")


def choose_folder(out: Path | None, *, recipe: str, exists: str, parent: str = "runs") -> Path:
    """Return a new or empty folder: `out`, or a numbered one below `parent`. Creates nothing."""
    path = _numbered(Path(parent), recipe) if out is None else out
    _check_creatable(path)
    if not path.exists() or not any(path.iterdir()):
        return path
    if exists == "fail":
        raise ConfigError(f"out {path} exists and is not empty; name another folder")
    return next(fresh for number in itertools.count(2) if not (fresh := path.with_name(f"{path.name}-{number}")).exists())


def check_new_file(option: str, path: Path, *, ending: str, force: bool) -> None:
    """Raise ConfigError before any work if the file cannot be written, or exists and `force` is off."""
    if path.suffix != ending:
        raise ConfigError(f"{option} {path} ends in {path.suffix or 'nothing'!r}; it must end in {ending}")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; give a file")
    if path.exists() and not force:
        raise ConfigError(f"{option} {path} exists; name another file, or overwrite it with --force")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{option} {path} cannot be written: folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {path} cannot be written: {folder} is not writable")

"""The list of a folder's files with the SHA-256 of each, so that a damaged folder is known before anything in it is used."""

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def _written(files: dict[str, dict[str, int | str]]) -> str:
    return json.dumps({"files": files}, indent=2, sort_keys=True) + "\n"


def _described(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _files(folder: Path) -> dict[str, Path]:
    """Links are listed too, and never have a hash that fits: a checkpoint holds its own bytes."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def write_manifest(folder: Path) -> None:
    text = _written({name: _described(path) for name, path in _files(folder).items()})
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with a folder, in words; None where every file is as it was written and there is no other."""
    files: dict[str, Any] | None = None
    try:
        stored = (folder / MANIFEST).read_bytes()
        read = json.loads(stored)["files"]
        files = read if _written(read).encode() == stored else None
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    if files is None:
        return f"{MANIFEST} is not as it was written"
    present = _files(folder)
    present.pop(MANIFEST)
    for name, expected in files.items():
        path = present.pop(name, None)
        if path is None:
            return f"{name} is missing"
        try:
            if path.is_symlink() or not path.is_file() or _described(path) != expected:
                return f"{name} is not as it was written"
        except OSError as problem:
            return f"{name} cannot be read: {problem.strerror or problem}"
    return f"{next(iter(present))} does not belong to it" if present else None

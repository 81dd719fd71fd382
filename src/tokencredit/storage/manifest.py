"""A manifest lists a folder's files with their sizes and SHA-256, so that damage is found before any file is used."""

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def _encode(files: dict[str, dict[str, int | str]]) -> str:
    return json.dumps({"files": files}, indent=2, sort_keys=True) + "\n"


def _describe(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _files(folder: Path) -> dict[str, Path]:
    """Links are listed too, so that `damage` reports them: a checkpoint must hold its own bytes."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def write_manifest(folder: Path) -> None:
    text = _encode({name: _describe(path) for name, path in _files(folder).items()})
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with a folder; None where every listed file is unchanged and no other file is there.

    The manifest itself must be, byte for byte, what `write_manifest` writes.
    """
    files: dict[str, Any] | None = None
    try:
        stored = (folder / MANIFEST).read_bytes()
        read = json.loads(stored)["files"]
        files = read if _encode(read).encode() == stored else None
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
            if path.is_symlink() or not path.is_file() or _describe(path) != expected:
                return f"{name} is not as it was written"
        except OSError as problem:
            return f"{name} cannot be read: {problem.strerror or problem}"
    return f"{next(iter(present))} does not belong to it" if present else None

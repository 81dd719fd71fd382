"""Files and folders that are there whole or not at all, also after a power cut.

Everything is written under another name in the same folder, flushed to the disk, renamed, and the rename flushed too.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokencredit.errors import StorageError
from tokencredit.storage.manifest import write_manifest

PARTIAL, REMOVED = ".partial", ".removed"
"""Endings of what a crash left behind; nobody reads those, and the next start clears them away."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Say in words that `path` could not be written."""
    try:
        yield
    except OSError as problem:
        raise StorageError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + PARTIAL)
    with storage_errors(path):
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync(path.parent)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; it takes the name `folder`, with a manifest of its files, when all is written and on the disk."""
    fresh = folder.with_name(folder.name + PARTIAL)
    with storage_errors(folder):
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            yield fresh
            write_manifest(fresh)
            for path in [*fresh.rglob("*"), fresh]:
                sync(path)
            fresh.rename(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        sync(folder.parent)


def remove_folder(folder: Path) -> None:
    """Out of sight in one rename, then piece by piece: a folder half removed never has the name of a whole one."""
    gone = folder.with_name(folder.name + REMOVED)
    shutil.rmtree(gone, ignore_errors=True)
    with storage_errors(folder):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    for path in folder.glob("*"):
        if path.name.endswith((PARTIAL, REMOVED)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

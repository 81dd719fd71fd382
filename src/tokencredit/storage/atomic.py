"""Atomic writes: after a crash or a power cut a file or folder is either complete or absent.

Data is written under a temporary name in the same folder, flushed to the disk and renamed; then the rename is flushed too.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokencredit.errors import StorageError
from tokencredit.storage.manifest import write_manifest

PARTIAL, REMOVED = ".partial", ".removed"
"""Endings of temporary names. A crash may leave such files behind; no code reads them, and the next start deletes them."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError raised inside into a StorageError that names `path` and the cause."""
    try:
        yield
    except OSError as problem:
        raise StorageError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path: Path, text: str) -> None:
    """Replace the file in one rename; on failure the old content stays."""
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
    """Yield a temporary folder. It gets a manifest and the name `folder` once every file is on the disk; on failure it is deleted."""
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
    """Rename the folder away first, then delete it, so a half-deleted folder never has a valid name."""
    gone = folder.with_name(folder.name + REMOVED)
    shutil.rmtree(gone, ignore_errors=True)
    with storage_errors(folder):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders that a crash left in `folder`."""
    for path in folder.glob("*"):
        if path.name.endswith((PARTIAL, REMOVED)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

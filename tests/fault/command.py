"""The real command in a process of its own."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from subprocess import CompletedProcess

from forked import run_forked

SMALL = [
    "--sampling.prompts", "4", "--sampling.group-size", "4", "--optimizer.steps-per-batch", "2", "--evaluation.problems", "8",
    "--evaluation.samples", "2", "--evaluation.final-problems", "8", "--evaluation.final-samples", "2", "--evaluation.every", "2",
    "--diagnose.every", "0", "--no-report",
]  # fmt: skip


def tokencredit(*arguments: str, cwd: Path) -> CompletedProcess[str]:
    return run_forked(partial(main_with, *arguments), cwd=cwd)


def tokencredit_with(package: str, version: str | None, *arguments: str, cwd: Path) -> CompletedProcess[str]:
    """The command where this version of a package is installed, or none, whatever the environment of these tests holds."""
    return run_forked(partial(_main_with_package, package, version, *arguments), cwd=cwd)


def main_with(*arguments: str) -> None:
    """The command in this very process, which must be one of its own."""
    from tokencredit.cli import main

    sys.argv = ["tokencredit", *arguments]
    main()


def _main_with_package(package: str, version: str | None, *arguments: str) -> None:
    installed = metadata.version

    def version_of(name: str) -> str:
        if name != package:
            return installed(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    metadata.version = version_of
    main_with(*arguments)


def assert_refused(arguments: Sequence[str], words: str, place: Path) -> None:
    """Exit code 2 with these words, no traceback, and every file below `place` as it was."""
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    done = tokencredit(*arguments, cwd=place)
    said = " ".join((done.stdout + done.stderr).replace("│", " ").split())
    assert done.returncode == 2, said
    assert words in said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before

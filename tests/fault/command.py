"""The real command in a process of its own."""

import sys
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

from forked import run_forked

SMALL = [
    "--sampling.prompts", "4", "--sampling.group-size", "4", "--optimizer.steps-per-batch", "2", "--evaluation.problems", "8",
    "--evaluation.samples", "2", "--evaluation.final-problems", "8", "--evaluation.final-samples", "2", "--evaluation.every", "2",
    "--diagnose.every", "0", "--no-report",
]  # fmt: skip


def tokencredit(*arguments: str, cwd: Path) -> CompletedProcess[str]:
    return run_forked(partial(_main, arguments), cwd=cwd)


def _main(arguments: tuple[str, ...]) -> None:
    from tokencredit.cli import main

    sys.argv = ["tokencredit", *arguments]
    main()

"""`tokencredit compare` whose runs are made up by compare_trainer.py; `python -m lab.compare_driver ARGUMENTS`, or in this process."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from unittest import mock

from tokencredit.cli import main
from tokencredit.lab.commands import compare
from tokencredit.lab.compare import runner as running
from tokencredit.lab.compare.design import PlannedRun
from tokencredit.lab.pages import comparison

TRAINER = Path(__file__).with_name("compare_trainer.py")
ENVIRONMENT = {"python": "3.11", "platform": "made up", "packages": {"torch": "2.13"}, "commit": "c0ffee", "diff": ""}
"""Somebody may edit or commit while tests run."""


def stand_in(run: PlannedRun, out: Path) -> list[str]:
    return [sys.executable, "-IS", str(TRAINER), str(running.run_file(run, out, ".toml")), str(out / run.path)]


def compare_command(*arguments: str) -> None:
    """Leaves by SystemExit, as the command does. The page is written without charts, which take a second."""
    with (
        mock.patch.object(compare, "execute", partial(running.execute, command=stand_in)),
        mock.patch.object(running, "BETWEEN_LOOKS", 0.01),
        mock.patch.object(comparison, "can_draw", return_value=False),
        mock.patch.object(compare, "describe_environment", return_value=ENVIRONMENT),
        mock.patch.dict(os.environ, {"MADE_UP_ENVIRONMENT": json.dumps(ENVIRONMENT)}),
        mock.patch.object(sys, "argv", ["tokencredit", "compare", *arguments]),
    ):
        main()


if __name__ == "__main__":
    compare_command(*sys.argv[1:])

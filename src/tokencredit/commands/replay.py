"""`tokencredit replay`: repeat a training step that a guard refused, and report whether the error occurs again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokencredit.errors import EXIT_GUARD, EXIT_OK
from tokencredit.text import brief


@dataclass(frozen=True)
class ReplayOptions:
    """Repeat a refused training step from its dump: the weights, optimizer state and batch from before the step. Writes no file.

    Exit code: 3 if the same stage fails for the same responses again, else 0.
    """

    dump: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DUMP")]
    """Dump folder, below RUN/guards."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ReplayOptions, args=list(arguments), prog="tokencredit replay")
    from tokencredit.trainer.failed_batch import replay

    found = replay(options.dump)
    refusal = found.refusal
    print(f"Original run: training step {refusal['step']} was refused at stage {refusal['stage']}: {brief(refusal['message'])}")
    for stage in found.passed:
        print(f"Replay: stage {stage} passed")
    if found.again is not None:
        print(f"Replay: stage {found.again.stage} failed: {brief(str(found.again))}")
    print(f"Check: {found.fresh_log_probs}.")
    print("Reproduced." if found.reproduced else "Not reproduced: the weights and the batch alone do not cause the error.")
    return EXIT_GUARD if found.reproduced else EXIT_OK

"""`tokencredit replay`: take the step again that a guard refused, and say whether the same number is bad again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokencredit.errors import EXIT_GUARD, EXIT_OK
from tokencredit.text import brief


@dataclass(frozen=True)
class ReplayOptions:
    """Replay a refused training step from its dump: the weights, optimizer and batch of the moment before. Nothing is written.

    Exit code 3 if the same stage is bad in the same responses again, 0 if not.
    """

    dump: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DUMP")]
    """Folder below RUN/guards."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ReplayOptions, args=list(arguments), prog="tokencredit replay")
    from tokencredit.trainer.failed_batch import replay

    found = replay(options.dump)
    print(f"Then, at training step {found.refusal['step']}, {found.refusal['stage']} refused: {brief(found.refusal['message'])}")
    for stage in found.passed:
        print(f"Now: {stage} finite")
    if found.again is not None:
        print(f"Now: {found.again.stage} not finite: {brief(str(found.again))}")
    print(f"And {found.fresh_log_probs}.")
    print("Reproduced." if found.reproduced else "Not reproduced: the cause was not in the weights and the batch alone, or is gone.")
    return EXIT_GUARD if found.reproduced else EXIT_OK

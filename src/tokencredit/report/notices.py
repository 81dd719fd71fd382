"""What a reader must know before trusting a run: foreign code that ran, and that it has not finished."""

import shlex
from typing import NamedTuple

from tokencredit.report.methods import flat
from tokencredit.report.run_reader import Run, setting
from tokencredit.text import visible

TRUSTED = (
    "Code shipped with the model was executed (trust_remote_code = true). "
    "What this run did and wrote down is only as trustworthy as that code."
)
NOT_ISOLATED = (
    'Programs written by the model were run without isolation (task.isolation = "plain"): in child processes with limits, '
    "but with the rights of the person who trained."
)


class Notice(NamedTuple):
    text: str
    command: str = ""
    grave: bool = False


def notices(run: Run) -> list[Notice]:
    found = []
    if any(value is True and path.split(".")[-1] == "trust_remote_code" for path, value in flat(run.config).items()):
        found.append(Notice(TRUSTED, grave=True))
    if setting(run.config, "task.type") == "code" and setting(run.config, "task.isolation") == "plain":
        found.append(Notice(NOT_ISOLATED, grave=True))
    if run.metrics and not run.result:
        found.append(_unfinished(run))
    return found


def _unfinished(run: Run) -> Notice:
    going_on = "continue it with:" if run.has_checkpoint else "begin it again (it has no checkpoint yet) with:"
    return Notice(f"Unless it is still running, {going_on}", f"tokencredit train --resume {shlex.quote(visible(run.name))}")

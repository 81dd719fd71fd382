"""What verl loads in every process through the entry-point group `verl.plugins`.

verl hides errors of a plug-in that it loads, so this module prints that the plug-in is live, or why it is not.
"""

import os
import sys

from tokencredit.integrations.support import TESTED, require

SAID = "TOKENCREDIT_VERL_BANNER"
"""Environment variable, set once the line was printed; processes that inherit it do not print it again."""


def _print(line: str) -> None:
    if os.environ.get(SAID) != line:
        os.environ[SAID] = line
        print(line, file=sys.stderr, flush=True)


def load() -> None:
    try:
        version = require("verl")
        from tokencredit.integrations.verl import registries, trainer, worker

        names = registries.register()
        trainer.register()
        worker.register()
    except Exception as problem:
        _print(f"tokencredit: the plug-in for verl is OFF: {problem}")
        raise
    tested = "" if version == TESTED["verl"] else f" (tested on {TESTED['verl']})"
    _print(
        f"tokencredit: the plug-in for verl {version}{tested} is live: trainer mode tokencredit, {len(names)} recipes as tokencredit-NAME"
    )


load()

"""Run untrusted programs in a restricted child process with `run_program`; `settle` decides which sandbox this machine uses.

docs/sandbox.md begins with what the sandbox does NOT cover.
"""

import functools
import sys
from typing import Literal

from tokencredit.errors import ConfigError
from tokencredit.grade.sandbox.child import CodeLimits, ProgramEnd, SandboxError
from tokencredit.grade.sandbox.limits_only import NOT_COVERED
from tokencredit.grade.sandbox.run import Settled, run_program

Isolation = Literal["bubblewrap", "auto", "plain"]
_PROOF = "print(6 * 7)"


@functools.cache
def bubblewrap_failure() -> str | None:
    """Why bubblewrap cannot be used on this machine; None if a test program ran in it. Tried once per process."""
    try:
        end = run_program(_PROOF, limits=CodeLimits(), isolation="bubblewrap")
    except (SandboxError, OSError) as failure:
        return str(failure)
    return None if end.output == "42\n" else f"a program that prints 42 gave {end.output!r} ({end.reason}): {end.errors.strip()}"


@functools.cache
def _warn_once(why: str) -> None:
    lines = "".join(f"\n  - {hole}" for hole in NOT_COVERED)
    print(f"warning: model-written code runs under plain limits, without isolation ({why}). NOT covered:{lines}", file=sys.stderr)


def settle(wanted: Isolation) -> Settled:
    """The sandbox to use: `auto` takes bubblewrap if it works here, else plain limits.

    Plain limits print a warning on standard error, once. ConfigError where bubblewrap is required but does not work.
    """
    if wanted == "plain":
        _warn_once("isolation is 'plain'")
        return "plain"
    failure = bubblewrap_failure()
    if failure is None:
        return "bubblewrap"
    if wanted == "bubblewrap":
        raise ConfigError(
            f"isolation is 'bubblewrap', which does not work here: {failure}. Install bubblewrap (and allow user namespaces), "
            "or use isolation 'auto' or 'plain' and accept what plain limits do not cover"
        )
    _warn_once(f"bubblewrap does not work here: {failure}")
    return "plain"


__all__ = ["CodeLimits", "Isolation", "ProgramEnd", "SandboxError", "Settled", "run_program", "settle"]

"""Programs that nobody trusts, run in a child that may not do much. `run_program` is the whole interface.

What this does not cover is written in docs/sandbox.md, first.

Which sandbox is used on this machine. Decided once, by trying.
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
    """Why bubblewrap cannot be used here; None if a program just ran in it."""
    try:
        end = run_program(_PROOF, limits=CodeLimits(), isolation="bubblewrap")
    except (SandboxError, OSError) as failure:
        return str(failure)
    return None if end.output == "42\n" else f"a program that prints 42 gave {end.output!r} ({end.reason}): {end.errors.strip()}"


@functools.cache
def _warn_once(why: str) -> None:
    lines = "".join(f"\n  - {hole}" for hole in NOT_COVERED)
    print(f"warning: code that a model wrote runs under plain limits, without isolation ({why}). NOT covered:{lines}", file=sys.stderr)


def settle(wanted: Isolation) -> Settled:
    """`bubblewrap` where asked for or where it works; plain limits otherwise, with a warning on standard error, once."""
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

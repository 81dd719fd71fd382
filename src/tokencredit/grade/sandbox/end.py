"""How a program ended, and the one way in which it is not the program's doing."""

import signal
from typing import NamedTuple


class SandboxError(RuntimeError):
    """The sandbox itself failed: nothing can be said about the program."""


class ProgramEnd(NamedTuple):
    """Exactly one of `exit_code` and `signal` is set, unless the parent killed the program (`timed_out`, `output_truncated`)."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    output: str
    """Standard output; bytes that are no UTF-8 are replaced."""
    errors: str
    """Standard error, bounded together with the output."""
    output_truncated: bool
    reason: str
    """One line for people."""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

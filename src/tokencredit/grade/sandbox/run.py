"""Run one program to its end, whatever that is."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal

from tokencredit.grade.sandbox.bubblewrap import started_in_bubblewrap
from tokencredit.grade.sandbox.child import START_SECONDS, Child
from tokencredit.grade.sandbox.end import ProgramEnd, SandboxError, signal_name
from tokencredit.grade.sandbox.limits import CodeLimits
from tokencredit.grade.sandbox.limits_only import started_plain
from tokencredit.grade.sandbox.watch import Watched

Settled = Literal["bubblewrap", "plain"]
STARTERS: Mapping[Settled, Callable[[CodeLimits], AbstractContextManager[Child]]] = {
    "bubblewrap": started_in_bubblewrap,
    "plain": started_plain,
}


def run_program(source: str, *, limits: CodeLimits, given: str = "", isolation: Settled = "bubblewrap") -> ProgramEnd:
    """Run Python `source` with `given` on its standard input. Raises SandboxError if the program could not even be started.

    When this returns, bubblewrap's whole process tree is gone; without it, all of the tree that stayed in its process group.
    """
    program = source.encode("utf-8", "surrogatepass")
    with STARTERS[isolation](limits) as child:
        watched = Watched(child, b"%d\n%b%b" % (len(program), program, given.encode("utf-8", "surrogatepass")), limits)
        watched.until_the_end()
        status = child.process.returncode
    output, errors = (watched.read[name].decode("utf-8", "replace") for name in ("stdout", "stderr"))
    if not watched.ready:
        raise SandboxError(_not_started(errors, timed_out=watched.timed_out, status=status))
    killed = watched.timed_out or watched.flooded
    # 128 + n is how a process reports, for another one, that signal n ended it.
    number = -status if status < 0 else status - 128 if 128 < status <= 192 else None
    return ProgramEnd(
        exit_code=None if killed or number is not None else status,
        signal=None if killed else number,
        timed_out=watched.timed_out,
        output=output,
        errors=errors,
        output_truncated=watched.flooded,
        reason=_reason(watched, limits, status, number),
    )


def _not_started(errors: str, *, timed_out: bool, status: int) -> str:
    said = errors.strip().splitlines()
    why = f"not ready after {START_SECONDS:g} s" if timed_out else f"it ended with status {status}"
    return f"the sandbox could not start the program: {said[-1] if said else why}"


def _reason(watched: Watched, limits: CodeLimits, status: int, number: int | None) -> str:
    if watched.flooded:
        return f"killed: more than {limits.output_bytes} bytes of output"
    if watched.timed_out:
        return f"killed: still running after {limits.wall_seconds:g} s"
    return f"exit code {status}" if number is None else f"ended by {signal_name(number)}"

"""Run one program to its end, whatever that is.

The parent's side of a running program: feed it, read it, and end it at the first limit it crosses.
"""

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal

from tokencredit.grade.sandbox.bubblewrap import started_in_bubblewrap
from tokencredit.grade.sandbox.child import START_SECONDS, Child, CodeLimits, ProgramEnd, SandboxError, signal_name
from tokencredit.grade.sandbox.limits_only import started_plain

# A program that closed its output and runs on is noticed by looking this often.
_TICK = 0.05


class Watched:
    """What was seen. The clock of the program starts when its limits stand; before that, only the sandbox can be late."""

    def __init__(self, child: Child, given: bytes, limits: CodeLimits) -> None:
        self.ready = self.timed_out = self.flooded = False
        self.read: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._child, self._limits, self._left = child, limits, memoryview(given)
        self._deadline = time.monotonic() + START_SECONDS
        self._selector = selectors.DefaultSelector()

    def until_the_end(self) -> None:
        process = self._child.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with self._selector as selector:
            for file, what in ((process.stdout, "stdout"), (process.stderr, "stderr")):
                os.set_blocking(file.fileno(), False)
                selector.register(file, selectors.EVENT_READ, what)
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
            selector.register(self._child.ready, selectors.EVENT_READ, "ready")
            while not self._over():
                self._step()
            self._child.kill()
            # The tree is dead: what is still in the pipes is all there will ever be.
            self._step(block=False)
            while any(key.data in self.read for key, _ in selector.select(0)):
                self._step(block=False)

    def _over(self) -> bool:
        if self.flooded:
            return True
        if time.monotonic() >= self._deadline:
            self.timed_out = True
            return True
        try:
            self._child.process.wait(0 if self._open_pipes() else _TICK)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _open_pipes(self) -> bool:
        return any(key.data in self.read for key in self._selector.get_map().values())

    def _step(self, *, block: bool = True) -> None:
        for key, _ in self._selector.select(_TICK if block else 0):
            if key.data == "stdin":
                self._feed()
            elif key.data == "ready":
                self._selector.unregister(key.fileobj)
                if os.read(self._child.ready, 1):
                    self.ready = True
                    self._deadline = time.monotonic() + self._limits.wall_seconds
            else:
                self._take(key)

    def _feed(self) -> None:
        stdin = self._child.process.stdin
        assert stdin is not None
        written = 0
        with contextlib.suppress(BlockingIOError):
            try:
                written = os.write(stdin.fileno(), self._left[: 1 << 16])
            except BrokenPipeError:
                written = len(self._left)
        self._left = self._left[written:]
        if not self._left:
            self._selector.unregister(stdin)
            stdin.close()

    def _take(self, key: selectors.SelectorKey) -> None:
        with contextlib.suppress(BlockingIOError):
            got = os.read(key.fd, 1 << 16)
            room = self._limits.output_bytes - sum(map(len, self.read.values()))
            self.read[key.data] += got[:room]
            self.flooded = self.flooded or len(got) > room
            if not got or self.flooded:
                self._selector.unregister(key.fileobj)


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

"""Run one program until it ends or crosses a limit: write its input, read its output, and kill it at the first limit crossed."""

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

# Polling interval in seconds: a program that has closed its output but still runs sends no event.
_TICK = 0.05


class RunningProgram:
    """Feeds, reads and ends one program. Its clock starts when its limits are set; until then the sandbox's start-up time counts."""

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
            # The process tree is dead: nothing more can be written to the pipes. Read what is left in them.
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
    """Run Python `source` with `given` on its standard input. Raises SandboxError if the program could not be started.

    When this returns, bubblewrap's complete process tree is gone; with plain limits, only the processes that stayed in the
    program's process group are.
    """
    program = source.encode("utf-8", "surrogatepass")
    with STARTERS[isolation](limits) as child:
        running = RunningProgram(child, b"%d\n%b%b" % (len(program), program, given.encode("utf-8", "surrogatepass")), limits)
        running.until_the_end()
        status = child.process.returncode
    output, errors = (running.read[name].decode("utf-8", "replace") for name in ("stdout", "stderr"))
    if not running.ready:
        raise SandboxError(_not_started(errors, timed_out=running.timed_out, status=status))
    killed = running.timed_out or running.flooded
    # The first process of a namespace exits with 128 + n where signal n ended the program.
    number = -status if status < 0 else status - 128 if 128 < status <= 192 else None
    return ProgramEnd(
        exit_code=None if killed or number is not None else status,
        signal=None if killed else number,
        timed_out=running.timed_out,
        output=output,
        errors=errors,
        output_truncated=running.flooded,
        reason=_reason(running, limits, status, number),
    )


def _not_started(errors: str, *, timed_out: bool, status: int) -> str:
    lines = errors.strip().splitlines()
    why = f"not ready after {START_SECONDS:g} s" if timed_out else f"it ended with status {status}"
    return f"the sandbox could not start the program: {lines[-1] if lines else why}"


def _reason(running: RunningProgram, limits: CodeLimits, status: int, number: int | None) -> str:
    if running.flooded:
        return f"killed: more than {limits.output_bytes} bytes of output"
    if running.timed_out:
        return f"killed: still running after {limits.wall_seconds:g} s"
    return f"exit code {status}" if number is None else f"ended by {signal_name(number)}"

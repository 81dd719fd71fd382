"""SIGINT and SIGTERM: finish the optimizer step, save, leave with 128 + the signal's number; a second one leaves at once."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = b"\nstopping after the current optimizer step or observation; interrupt again to leave at once\n"


class StopTraining(BaseException):
    """A stop was requested in the middle of work that can be thrown away and done again, or after a checkpoint was saved."""


class StopSignal:
    def __init__(self) -> None:
        self.number: int | None = None
        self._interruptible = False

    @property
    def requested(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)

    def request(self, number: int) -> None:
        self.number = number
        if self._interruptible:
            self._interruptible = False
            raise StopTraining

    @contextmanager
    def interruptible(self, allowed: bool = True) -> Iterator[None]:
        """Inside, a stop signal raises StopTraining at once: the work moves no weights and writes no file."""
        if not allowed:
            yield
            return
        self._raise_if_requested()
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False
        # A signal that came while a library was called back may have been swallowed there.
        self._raise_if_requested()

    def _raise_if_requested(self) -> None:
        if self.requested:
            raise StopTraining


@contextmanager
def handle_stop_signals() -> Iterator[StopSignal]:
    stop = StopSignal()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.requested:
            exit_immediately(128 + number)
        # Not print: the signal may have come in the middle of one.
        os.write(2, STOPPING)
        stop.request(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_immediately(code: int) -> None:
    """No clean-up runs: what is half-written has another name, and children die with this process. The cursor is given back."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h\n")
    os._exit(code)

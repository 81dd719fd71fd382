"""SIGINT and SIGTERM: finish the optimizer step, publish, leave with 128 + the signal's number; a second one leaves at once."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = b"\nstopping when the step or the look that is under way is done; once more leaves at once\n"


class StopTraining(BaseException):
    """A stop was asked for in the middle of work that may be thrown away and done again."""


class StopSignal:
    def __init__(self) -> None:
        self.number: int | None = None
        self._abandonable = False

    @property
    def asked(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)

    def ask(self, number: int) -> None:
        self.number = number
        if self._abandonable:
            self._abandonable = False
            raise StopTraining

    @contextmanager
    def interruptible(self, allowed: bool = True) -> Iterator[None]:
        """Work that moves no weights and writes no file: a stop need not wait for its end."""
        if not allowed:
            yield
            return
        self._give_way()
        self._abandonable = True
        try:
            yield
        finally:
            self._abandonable = False
        # A signal that came while a library was called back may have been swallowed there.
        self._give_way()

    def _give_way(self) -> None:
        if self.asked:
            raise StopTraining


@contextmanager
def handle_stop_signals() -> Iterator[StopSignal]:
    request = StopSignal()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.asked:
            exit_immediately(128 + number)
        # Not print: the signal may have come in the middle of one.
        os.write(2, STOPPING)
        request.ask(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_immediately(code: int) -> None:
    """No clean-up runs: what is half-written has another name, and children die with this process. The cursor is given back."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h\n")
    os._exit(code)

"""SIGINT and SIGTERM: finish the training step, save, leave with 128 + the signal's number; a second one leaves at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)


@contextmanager
def listening() -> Iterator[StopRequest]:
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.number is not None:
            raise SystemExit(128 + number)
        request.number = number

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""Doing something again and again without spending much time on it."""

import time
from collections.abc import Callable

LEAST = 30.0
SHARE = 0.05


class NowAndThen:
    """Acts when it is called, but not before `least` seconds have passed, nor for more than `share` of the time."""

    def __init__(
        self, act: Callable[[], object], *, least: float = LEAST, share: float = SHARE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.act, self.least, self.share, self.clock = act, least, share, clock
        self.not_before = clock() + least

    def __call__(self) -> None:
        begun = self.clock()
        if begun < self.not_before:
            return
        self.act()
        ended = self.clock()
        self.not_before = ended + max(self.least, (ended - begun) / self.share)

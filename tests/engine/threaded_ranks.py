"""Ranks as threads of one process: quick enough for many cases. What real processes do is shown in test_ranks.py."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

from tokencredit.pipeline.distributed import ProcessGroup

Result = TypeVar("Result")
FINISHED = object()


class ThreadRank:
    def __init__(self, index: int, slots: list[Any], barrier: Barrier) -> None:
        self.index, self.count = index, len(slots)
        self._slots, self._barrier = slots, barrier

    def tell(self, value: Any) -> list[Any]:
        self._slots[self.index] = value
        self._barrier.wait()
        return list(self._slots)

    def gather(self, value: Any) -> list[Any]:
        given = self.tell(deepcopy(value))
        assert not any(part is FINISHED for part in given), "one rank gathers more often than another"
        self._barrier.wait()
        return given


def on_ranks(count: int, work: Callable[[ProcessGroup], Result]) -> list[Result]:
    """What `work` gives on each rank; a rank that fails, or is left waiting by the others, fails for all."""
    barrier, slots = Barrier(count, timeout=60), [None] * count

    def run(index: int) -> Result | Exception:
        rank = ThreadRank(index, slots, barrier)
        try:
            result = work(rank)
            rank.tell(FINISHED)
        except Exception as problem:
            barrier.abort()
            return problem
        return result

    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(run, range(count)))
    problems = [result for result in results if isinstance(result, Exception)]
    for problem in sorted(problems, key=lambda problem: isinstance(problem, BrokenBarrierError)):
        raise problem
    return [result for result in results if not isinstance(result, Exception)]

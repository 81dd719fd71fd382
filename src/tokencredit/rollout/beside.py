"""Work of the device beside work of the host: tokens are scored in a thread while responses are graded in child processes.

Grading stays in the main thread, where a stop that is asked for interrupts it; a scoring pass is short enough to be waited for.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Found = TypeVar("Found")


@contextmanager
def beside(work: Callable[[], Found]) -> Iterator[Future[Found]]:
    """`work` runs beside the block, which never ends before it; what it raises is raised by `result()`."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside") as one_thread:
        yield one_thread.submit(work)

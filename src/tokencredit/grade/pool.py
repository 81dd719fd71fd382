"""Grade many responses in parallel child processes. A response that breaks its grader loses only its own verdict.

After a hang, a crash, too much memory, an exception or a result that is not a number, the score is NaN with the reason, never 0,
and the process is replaced. A grader that cannot be started, imported or called is the user's mistake and raises `ConfigError`.
"""

import json
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tokencredit.errors import ConfigError
from tokencredit.grade.child import Child, LostError, wait_for
from tokencredit.grade.graders import grader_path
from tokencredit.grade.protocol import GradeLimits, Verdict, printable, ungraded


class GraderPool:
    """Starts processes only when there is something to grade; a closed pool starts new ones when it is used again."""

    def __init__(self, *, grader: str, knobs: Mapping[str, Any] | None = None, limits: GradeLimits | None = None, workers: int = 2) -> None:
        grader_path(grader)
        if workers < 1:
            raise ConfigError(f"workers is {workers}; give at least 1")
        try:
            json.dumps(dict(knobs or {}), allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise ConfigError(f"the knobs of grader {grader!r} must be plain JSON values: {problem}") from None
        self.grader, self.knobs, self.limits, self.workers = grader, dict(knobs or {}), limits or GradeLimits(), workers
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _close_all, self._children)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            _close_all(self._children)

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """One verdict per (gold answer, response), in the order of the pairs."""
        with self._lock:
            try:
                return self._grade(pairs)
            except BaseException:
                # A late verdict of this call must not be read as a verdict of the next call.
                _close_all(self._children)
                raise

    def _grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        waiting: deque[int] = deque()
        for index, (_, response) in enumerate(pairs):
            if len(response) > self.limits.longest_response:
                longest = self.limits.longest_response
                verdicts[index] = ungraded(f"the response has {len(response)} characters, more than the limit of {longest}")
            else:
                waiting.append(index)
        while len(verdicts) < len(pairs):
            self._refill(len(pairs) - len(verdicts))
            for child in self._children:
                if child.idle and waiting:
                    child.grade(index := waiting.popleft(), *pairs[index])
            for child in wait_for(self._children):
                child.send_more()
                self._receive(child, verdicts, waiting)
            self._end_late(verdicts)
        return [verdicts[index] for index in range(len(pairs))]

    def _refill(self, wanted: int) -> None:
        """End processes that died while idle or graded `recycle_after` responses; start new ones up to the number needed."""
        for child in self._children.copy():
            finished = child.idle and (child.spent or child.graded >= self.limits.recycle_after or not child.alive)
            if finished or not child.ours:
                self._remove(child)
        while len(self._children) < min(self.workers, wanted):
            self._children.append(Child(self.grader, self.knobs, self.limits))

    def _remove(self, child: Child) -> None:
        self._children.remove(child)
        child.close()

    def _receive(self, child: Child, verdicts: dict[int, Verdict], waiting: deque[int]) -> None:
        try:
            answer = child.receive()
        except LostError as loss:
            self._lose(child, str(loss), verdicts, waiting)
            return
        if answer is None:
            return
        if "mistake" in answer:
            raise ConfigError(printable(answer["mistake"]))
        if not child.ready:
            child.mark_ready()
            return
        verdicts[answer["item"]] = _read(answer)
        child.item = None
        child.graded += 1
        child.spent = bool(answer.get("spent"))

    def _lose(self, child: Child, why: str, verdicts: dict[int, Verdict], waiting: deque[int]) -> None:
        """Remove a lost process. Its item is ungraded, or graded again where the thread that started the process has ended."""
        error = child.startup_error()
        self._remove(child)
        if child.starter_ended:
            waiting.extendleft([] if child.item is None else [child.item])
        elif child.item is None:
            raise ConfigError(
                f"grader {self.grader!r} cannot be used: {why} while it was starting{error and f'; last error line: {error}'}"
            )
        else:
            verdicts[child.item] = ungraded(why)

    def _end_late(self, verdicts: dict[int, Verdict]) -> None:
        now = time.monotonic()
        for child in [child for child in self._children if child.deadline is not None and child.deadline <= now]:
            self._remove(child)
            if child.item is None:
                raise ConfigError(f"grader {self.grader!r} cannot be used: it did not start within {self.limits.start_seconds:g} s")
            verdicts[child.item] = ungraded(f"no verdict within {self.limits.seconds:g} s")


def _read(answer: Mapping[str, Any]) -> Verdict:
    """The verdict in a process's answer. The answer comes from outside, so every field is checked."""
    score, reason = answer.get("score"), answer.get("reason")
    if isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score):
        return Verdict(float(score), None if reason is None else printable(reason))
    return ungraded(printable(reason or "the grading process sent no score"))


def _close_all(children: list[Child]) -> None:
    while children:
        children.pop().close()

"""Many responses graded at once in child processes. What one of them does to its grader costs only its own verdict.

A hang, a crash, too much memory, an exception or a result that is no number: NaN with the reason, never 0, and the process
is replaced. A grader that cannot be started, imported or called is the user's mistake and raises `ConfigError`.
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
    """Starts nothing until something is graded; after `close` it starts anew when used again."""

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
        """One verdict per (gold answer, response), in the order asked."""
        with self._lock:
            try:
                return self._grade(pairs)
            except BaseException:
                # What was still being graded must not answer the next question.
                _close_all(self._children)
                raise

    def _grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        waiting: deque[int] = deque()
        for index, (_, response) in enumerate(pairs):
            if len(response) > self.limits.longest_response:
                longest = self.limits.longest_response
                verdicts[index] = ungraded(f"the response has {len(response)} characters, more than the {longest} that are graded")
            else:
                waiting.append(index)
        while len(verdicts) < len(pairs):
            self._staff(len(pairs) - len(verdicts))
            for child in self._children:
                if child.idle and waiting:
                    child.ask(index := waiting.popleft(), *pairs[index])
            for child in wait_for(self._children):
                child.send_more()
                self._attend(child, verdicts, waiting)
            self._give_up_on_late(verdicts)
        return [verdicts[index] for index in range(len(pairs))]

    def _staff(self, wanted: int) -> None:
        """Let go of processes that died at rest or have served long enough; start what is missing."""
        for child in self._children.copy():
            finished = child.idle and (child.spent or child.answered >= self.limits.recycle_after or not child.alive)
            if finished or not child.ours:
                self._dismiss(child)
        while len(self._children) < min(self.workers, wanted):
            self._children.append(Child(self.grader, self.knobs, self.limits))

    def _dismiss(self, child: Child) -> None:
        self._children.remove(child)
        child.close()

    def _attend(self, child: Child, verdicts: dict[int, Verdict], waiting: deque[int]) -> None:
        try:
            answer = child.hear()
        except LostError as loss:
            self._lose(child, str(loss), verdicts, waiting)
            return
        if answer is None:
            return
        if "mistake" in answer:
            raise ConfigError(printable(answer["mistake"]))
        if not child.ready:
            child.started()
            return
        verdicts[answer["item"]] = _read(answer)
        child.asked = None
        child.answered += 1
        child.spent = bool(answer.get("spent"))

    def _lose(self, child: Child, why: str, verdicts: dict[int, Verdict], waiting: deque[int]) -> None:
        said = child.said_while_starting()
        self._dismiss(child)
        if child.starter_ended:
            waiting.extendleft([] if child.asked is None else [child.asked])
        elif child.asked is None:
            raise ConfigError(f"grader {self.grader!r} cannot be used: {why} while it was starting{said and f'; it said: {said}'}")
        else:
            verdicts[child.asked] = ungraded(why)

    def _give_up_on_late(self, verdicts: dict[int, Verdict]) -> None:
        now = time.monotonic()
        for child in [child for child in self._children if child.due is not None and child.due <= now]:
            self._dismiss(child)
            if child.asked is None:
                raise ConfigError(f"grader {self.grader!r} cannot be used: it did not start within {self.limits.start_seconds:g} s")
            verdicts[child.asked] = ungraded(f"no verdict within {self.limits.seconds:g} s")


def _read(answer: Mapping[str, Any]) -> Verdict:
    """What a process said of one item; it is data from outside, so nothing about it is taken for granted."""
    score, reason = answer.get("score"), answer.get("reason")
    if isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score):
        return Verdict(float(score), None if reason is None else printable(reason))
    return ungraded(printable(reason or "the grading process sent no score"))


def _close_all(children: list[Child]) -> None:
    while children:
        children.pop().close()

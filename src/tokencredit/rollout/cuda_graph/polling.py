"""What the host knows of the rows while the device goes on: asked every few steps, heard one question later, so nobody waits."""

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.policy.token_text import StopWatcher
from tokencredit.rollout.cuda_graph.buffers import Workspace


class _Question(NamedTuple):
    live: Tensor
    tokens: Tensor
    """Drawn since the question before; none where no stop string is watched for."""
    length: Tensor
    first: int
    answered: torch.cuda.Event | None


class Lookout:
    """Counts rows that go on, and ends those whose text holds a stop string.

    A row draws on until that is seen. What it drew beyond its stop is cut off: draws depend on row and position alone, so
    nobody else's differ by it.
    """

    def __init__(self, space: Workspace, rows: int, stops: StopWatcher) -> None:
        self.space, self.rows, self.stops = space, rows, stops
        self.cut: dict[int, int] = {}
        """Length at which a stop string ended a row."""
        self._asked: deque[_Question] = deque()
        self._upto = 0

    def ask(self, upto: int) -> None:
        """About the positions before `upto`."""
        written = self.space.written
        live = (written.ended[: self.rows] == 0).sum()
        seen = written.tokens[: self.rows, self._upto : upto] if self.stops else written.tokens[:0]
        answers = [_to_host(value) for value in (live, seen, written.length[: self.rows])]
        event = torch.cuda.Event() if live.is_cuda else None
        if event is not None:
            event.record()
        self._asked.append(_Question(answers[0], answers[1], answers[2], self._upto, event))
        self._upto = upto

    def hear(self, *, late: int = 1) -> int | None:
        """Rows that went on when asked, of all questions but the last `late`; None: no answer is due."""
        live = None
        while len(self._asked) > late:
            question = self._asked.popleft()
            if question.answered is not None:
                question.answered.synchronize()
            live = int(question.live)
            if self.stops:
                self._watch(question)
        return live

    def _watch(self, question: _Question) -> None:
        lengths = question.length.tolist()
        found = []
        for row, drawn in enumerate(question.tokens.tolist()):
            if row in self.cut:
                continue
            for place, token in enumerate(drawn[: max(0, lengths[row] - question.first)]):
                if self.stops.ended([row], [token])[0]:
                    self.cut[row] = question.first + place + 1
                    found.append(row)
                    break
        if found:
            device = self.space.x.device
            rows = torch.tensor(found, pin_memory=device.type == "cuda").to(device, non_blocking=True)
            self.space.written.ended[rows] = 1


def _to_host(value: Tensor) -> Tensor:
    if not value.is_cuda:
        return value.clone()
    there = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return there.copy_(value.contiguous(), non_blocking=True)

"""Asynchronous polling of unfinished rows: the host reads each result one poll later, so it never waits for the device."""

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.policy.token_text import StopWatcher
from tokencredit.rollout.cuda_graph.buffers import Workspace


class _Poll(NamedTuple):
    live: Tensor
    """Number of unfinished rows."""
    tokens: Tensor
    """Tokens since the previous poll; empty without stop strings."""
    length: Tensor
    first: int
    copied: torch.cuda.Event | None


class RowPoller:
    """Counts unfinished rows, and ends rows whose text contains a stop string.

    A row continues until the host finds its stop string; tokens beyond it are cut off. Draws depend only on row and position, so
    these extra tokens do not change other rows.
    """

    def __init__(self, space: Workspace, rows: int, stops: StopWatcher) -> None:
        self.space, self.rows, self.stops = space, rows, stops
        self.cut: dict[int, int] = {}
        """Length at which a stop string ended a row."""
        self._pending: deque[_Poll] = deque()
        self._polled_to = 0

    def request(self, end: int) -> None:
        """Start copying the state of the rows, with tokens before position `end`, to the host."""
        written = self.space.written
        live = (written.ended[: self.rows] == 0).sum()
        seen = written.tokens[: self.rows, self._polled_to : end] if self.stops else written.tokens[:0]
        copies = [_to_host(value) for value in (live, seen, written.length[: self.rows])]
        event = torch.cuda.Event() if live.is_cuda else None
        if event is not None:
            event.record()
        self._pending.append(_Poll(copies[0], copies[1], copies[2], self._polled_to, event))
        self._polled_to = end

    def collect(self, *, late: int = 1) -> int | None:
        """Unfinished rows of the newest poll except the last `late`; None where no poll is due."""
        live = None
        while len(self._pending) > late:
            poll = self._pending.popleft()
            if poll.copied is not None:
                poll.copied.synchronize()
            live = int(poll.live)
            if self.stops:
                self._cut_at_stops(poll)
        return live

    def _cut_at_stops(self, poll: _Poll) -> None:
        lengths = poll.length.tolist()
        found = []
        for row, drawn in enumerate(poll.tokens.tolist()):
            if row in self.cut:
                continue
            for offset, token in enumerate(drawn[: max(0, lengths[row] - poll.first)]):
                if self.stops.ended([row], [token])[0]:
                    self.cut[row] = poll.first + offset + 1
                    found.append(row)
                    break
        if found:
            device = self.space.x.device
            rows = torch.tensor(found, pin_memory=device.type == "cuda").to(device, non_blocking=True)
            self.space.written.ended[rows] = 1


def _to_host(value: Tensor) -> Tensor:
    if not value.is_cuda:
        return value.clone()
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return host.copy_(value.contiguous(), non_blocking=True)

"""The parent's handle on one grading process: start it, send it items, receive verdicts, end it."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.grade.protocol import GradeLimits, decode, encode, printable

COMMAND = ("-P", "-m", "tokencredit.grade.worker")
SECONDS_TO_DIE = 1.0
"""A process whose channel has closed is usually exiting; wait this long to learn how it ended."""


class LostError(Exception):
    """The process can no longer grade; the message gives the reason."""


class Child:
    """A new interpreter, never a fork: the parent may hold torch's threads and a GPU."""

    def __init__(self, grader: str, knobs: Mapping[str, Any], limits: GradeLimits) -> None:
        self.limits = limits
        self.ready = False
        self.item: int | None = None
        """The item that is being graded."""
        self.deadline: float | None = None
        """When the answer is late, on the monotonic clock; None while no answer is expected."""
        self.graded = 0
        self.spent = False
        """The process reported that it must be replaced, for example after running out of memory."""
        self._received, self._unsent = b"", b""
        self._ended: str | None = None
        self._owner = os.getpid()
        self._starter = threading.current_thread()
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,
            )
        except (OSError, ValueError) as failure:
            self.channel.close()
            raise ConfigError(f"the grading process of {grader!r} cannot be started with {sys.executable!r}: {failure}") from None
        finally:
            theirs.close()
        self._send({"parent": os.getpid(), "grader": grader, "knobs": dict(knobs), "memory_mib": limits.memory_mib}, limits.start_seconds)

    @property
    def sending(self) -> bool:
        return bool(self._unsent)

    @property
    def idle(self) -> bool:
        return self.ready and self.item is None

    @property
    def ours(self) -> bool:
        """False in a fork of the process that started it: two parents would read each other's verdicts."""
        return os.getpid() == self._owner

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def starter_ended(self) -> bool:
        """Linux sends the parent-death signal when the *thread* that started a child ends; then the grader is not to blame."""
        return not self._starter.is_alive()

    def grade(self, item: int, gold: str, response: str) -> None:
        """Send one item; its verdict arrives by `receive`."""
        self.item = item
        self._send({"item": item, "gold": gold, "response": response}, self.limits.seconds)

    def _send(self, message: dict[str, Any], seconds: float) -> None:
        self._unsent = encode(message)
        self.deadline = time.monotonic() + seconds
        self.send_more()

    def send_more(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            self._unsent = self._unsent[self.channel.send(self._unsent) :]

    def receive(self) -> dict[str, Any] | None:
        """The complete answer, or None while parts of it are missing. LostError where the process cannot grade any more."""
        try:
            piece = self.channel.recv(self.limits.largest_answer + 1)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise LostError(f"the grading process {self.end(SECONDS_TO_DIE)}")
        self._received += piece
        if len(self._received) > self.limits.largest_answer:
            raise LostError(f"the grading process sent more than {self.limits.largest_answer} bytes for one verdict")
        if not self._received.endswith(b"\n"):
            return None
        line, self._received = self._received, b""
        try:
            answer = decode(line)
        except ValueError as problem:
            raise LostError(f"the grading process sent something that is not a verdict: {problem}") from None
        if "mistake" not in answer and answer.get("item") != self.item:
            raise LostError("the grading process sent the verdict of another item")
        self.deadline = None
        return answer

    def startup_error(self) -> str:
        """The last line of its standard error, which stays open until the grader is imported."""
        if self._process.stderr is None or self._process.stderr.closed:
            return ""
        os.set_blocking(self._process.stderr.fileno(), False)
        lines = (self._process.stderr.read() or b"").decode("utf-8", "replace").strip().splitlines()
        return printable(lines[-1]) if lines else ""

    def mark_ready(self) -> None:
        self.ready, self.deadline = True, None
        self._close_stderr()

    def end(self, patience: float = 0.0) -> str:
        """Kill the process group and leave no zombie. Returns how the process had ended by itself, if it had within `patience`."""
        if self._ended is None:
            if self.ours:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)
                self._ended = _describe_exit(self._process.returncode)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            else:
                self._ended = _describe_exit(self._process.poll())
            self.channel.close()
        return self._ended

    def close(self) -> None:
        self.end()
        self._close_stderr()

    def _close_stderr(self) -> None:
        if self._process.stderr is not None:
            self._process.stderr.close()


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "closed its channel"
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _environment() -> dict[str, str]:
    """The parent's import path, so that users' graders are found; one thread, because the pool sets the number of processes."""
    folders = [folder or os.getcwd() for folder in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folder for folder in folders if os.pathsep not in folder), "OMP_NUM_THREADS": "1"}


def wait_for(children: Sequence[Child]) -> list[Child]:
    """Block until a child can be read from or written to, and return those; an empty list when the first deadline passes."""
    awaited = [child for child in children if child.deadline is not None]
    with selectors.DefaultSelector() as selector:
        for child in awaited:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.sending else 0)
            selector.register(child.channel, events, child)
        first = min(child.deadline for child in awaited if child.deadline is not None)
        return [key.data for key, _ in selector.select(max(0.0, first - time.monotonic()))]

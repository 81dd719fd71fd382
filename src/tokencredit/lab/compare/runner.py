"""Executes planned runs in subprocesses, several at a time.

A failed run is reported and the others continue. An interrupt stops all runs; the next call trains unfinished ones again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from tokencredit.config.resolve import to_toml
from tokencredit.lab.compare.design import PlannedRun
from tokencredit.storage.atomic import atomic_write, remove_folder
from tokencredit.storage.lock import locked

LAST_WORDS = 2000
BETWEEN_LOOKS = 0.1
PATIENCE = 20.0
"""Seconds that an interrupted run has to exit before it is killed."""


class Failure(NamedTuple):
    run: PlannedRun
    code: int
    said: str
    """The last lines the process printed."""

    def to_json(self) -> dict[str, Any]:
        run = self.run
        place = {"recipe": run.arm, "base": run.base, "rate": run.rate, "seed": run.seed, "tuning": run.tuning}
        return {**place, "code": self.code, "said": self.said}


class Watcher(Protocol):
    def ticked(self, running: float) -> None:
        """`running`: the progress of unfinished runs, in units of runs."""
        ...

    def finished(self, run: PlannedRun) -> None: ...

    def failed(self, failure: Failure) -> None: ...


class Started(NamedTuple):
    run: PlannedRun
    process: subprocess.Popen[bytes]


def train_command(run: PlannedRun, out: Path) -> list[str]:
    config_file = run_file(run, out, ".toml")
    return [sys.executable, "-m", "tokencredit", "train", str(config_file), "--out", str(out / run.path), "--exists", "fail", "--no-report"]


def run_file(run: PlannedRun, out: Path, ending: str) -> Path:
    """A file about a run (configuration, output, failure) next to the run directory, which only the run writes to."""
    folder = out / run.path
    return folder.with_name(folder.name + ending)


def execute(
    runs: Sequence[PlannedRun],
    out: Path,
    *,
    at_once: int,
    watcher: Watcher,
    command: Callable[[PlannedRun, Path], list[str]] = train_command,
    keep_models: bool = False,
) -> list[Failure]:
    """Execute the runs in order. SIGINT and SIGTERM raise KeyboardInterrupt after every started process has ended."""
    waiting, started, failures = list(runs), list[Started](), list[Failure]()
    with _terminated_is_interrupted():
        try:
            while waiting or started:
                while waiting and len(started) < at_once:
                    started.append(_start(waiting.pop(0), out, command))
                for one in [one for one in started if one.process.poll() is not None]:
                    started.remove(one)
                    failure = _conclude(one, out, keep_models=keep_models)
                    # The progress of running runs must not count the finished one twice.
                    watcher.ticked(sum(_share_done(other.run, out) for other in started))
                    if failure is None:
                        watcher.finished(one.run)
                    else:
                        failures.append(failure)
                        watcher.failed(failure)
                watcher.ticked(sum(_share_done(one.run, out) for one in started))
                time.sleep(BETWEEN_LOOKS)
        finally:
            _stop(started)
    return failures


def refuse_in_use(run: PlannedRun, out: Path) -> None:
    """Raise if a process of a killed comparison still trains this run."""
    if (out / run.path).is_dir():
        with locked(out / run.path):
            pass


def clear(run: PlannedRun, out: Path) -> None:
    """Delete what an earlier attempt of this run left."""
    folder = out / run.path
    if folder.is_dir():
        with locked(folder):
            remove_folder(folder)
    run_file(run, out, ".failed.json").unlink(missing_ok=True)


def failures_of(runs: Sequence[PlannedRun], out: Path) -> list[Failure]:
    """The failures that earlier attempts recorded."""
    found = []
    for run in runs:
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(run_file(run, out, ".failed.json").read_text(encoding="utf-8"))
            found.append(Failure(run, int(record["code"]), str(record["said"])))
    return found


def _start(run: PlannedRun, out: Path, command: Callable[[PlannedRun, Path], list[str]]) -> Started:
    folder = out / run.path
    folder.parent.mkdir(parents=True, exist_ok=True)
    clear(run, out)
    atomic_write(run_file(run, out, ".toml"), to_toml(run.config))
    threads = {"OMP_NUM_THREADS": str(run.config.threads)} if run.config.threads else {}
    with run_file(run, out, ".txt").open("wb") as said:
        # A new process session: the terminal's interrupt reaches only this process, which passes it on.
        process = subprocess.Popen(
            command(run, out),
            stdout=said,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | threads,
            start_new_session=True,
        )
    return Started(run, process)


def _conclude(one: Started, out: Path, *, keep_models: bool) -> Failure | None:
    folder, code = out / one.run.path, one.process.returncode
    if not keep_models:
        # Failed runs too: they restart from scratch, and their checkpoints would fill the disk.
        for name in ("checkpoints", "model"):
            if (folder / name).is_dir():
                remove_folder(folder / name)
    if code == 0 and (folder / "result.json").is_file():
        return None
    said = run_file(one.run, out, ".txt").read_bytes()[-LAST_WORDS:].decode("utf-8", "replace").strip()
    failure = Failure(one.run, code, said or "it printed nothing")
    atomic_write(run_file(one.run, out, ".failed.json"), json.dumps({"code": code, "said": failure.said}) + "\n")
    return failure


def _share_done(run: PlannedRun, out: Path) -> float:
    with suppress(OSError):
        return min(1.0, (out / run.path / "metrics.jsonl").read_bytes().count(b"\n") / run.config.steps)
    return 0.0


def _stop(started: Sequence[Started]) -> None:
    for one in started:
        one.process.terminate()
    until = time.monotonic() + PATIENCE
    for one in started:
        try:
            one.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too: a shell starts background jobs with SIGINT ignored.
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LEAST = 30.0
SHARE = 0.05


class Throttle:
    """Rate-limits an action: at most once per `least` seconds, and at most `share` of wall time."""

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

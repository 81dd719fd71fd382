"""The callback that forwards the numbers and events of a run to its trackers.

No text of a prompt or a response is sent to a tracker. The run's id is stored in `trackers.json` in the run folder, so that a resumed run
continues under the same id.
"""

import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tokencredit.config.messages import first_line
from tokencredit.config.train import Track, TrainConfig
from tokencredit.errors import GuardError
from tokencredit.policy.policy import Policy
from tokencredit.storage.run_dir import RunDir
from tokencredit.trackers import TrackedRun, Tracker, tracker_class
from tokencredit.trainer.callbacks import Callback
from tokencredit.trainer.evaluate import Accuracy

WITHOUT_DATA = ("warning", "guard", "damaged", "out-of-memory")
"""Kinds of events whose messages hold numbers and paths only. Other messages may quote an answer after a colon; that part is not sent."""


class TrackerCallback:
    """A Callback that logs to trackers and forwards every call to `inner`. A tracker that raises is dropped with a warning event."""

    def __init__(self, config: TrainConfig, folder: Path, inner: Callback, *, active: bool = True) -> None:
        """Of several processes, only one is `active`; the others log to no tracker."""
        self.config, self.folder, self.inner = config, RunDir(folder), inner
        self.names = config.track.to if active else ()
        self.trackers: dict[str, Tracker] = {}
        self.step, self.begun, self.finished = 0, False, False
        self.early: list[tuple[int, str, str]] = []
        """Events from before `on_train_begin`: until then the run folder may not exist."""

    def __enter__(self) -> Self:
        return self

    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        self.inner.on_train_begin(policy, before, step)
        self.step, self.begun = step, True
        for name in self.names:
            self._guarded(name, lambda name=name: self._open(name, before))
        for event in self.early:
            self._each(lambda tracker, event=event: tracker.note(*event))

    def on_step_end(self, row: dict[str, Any], seconds: float) -> None:
        self.inner.on_step_end(row, seconds)
        self.step = row["step"]
        self._each(lambda tracker: _log(tracker, self.step, _numbers_of_step(row, seconds)))

    def on_event(self, step: int, kind: str, message: str) -> None:
        self.inner.on_event(step, kind, message)
        note = (step, kind, message if kind in WITHOUT_DATA else message.partition(":")[0])
        if self.begun:
            self._each(lambda tracker: tracker.note(*note))
        else:
            self.early.append(note)

    def log_result(self, result: Mapping[str, Any]) -> None:
        """Log the run's result; `result` is empty for an interrupted run."""
        self.finished = bool(result)
        if result:
            self._each(lambda tracker: tracker.conclude(self.step, numbers_in(result, "result/")))

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(problem, GuardError):
            self._each(lambda tracker: tracker.note(self.step, "stopped", str(problem).partition(":")[0]))
        self._each(lambda tracker: tracker.close(finished=self.finished))

    def _open(self, name: str, before: Accuracy) -> None:
        """Open a tracker and log the steps it lacks: it may be new to a resumed run, or a kill may have lost its last rows."""
        identity = identify(self.folder, self.config.track)
        config = self.config.model_dump(mode="json")
        path = self.folder.path.absolute()
        run = TrackedRun(folder=path, id=identity.id, project=identity.project, name=identity.name, config=config, step=self.step)
        self.trackers[name] = tracker = tracker_class(name)(run)
        _log(tracker, 0, numbers_in(before.to_json(), "held_out/"))
        seconds = {row["step"]: sum(row["seconds"].values()) for row in self.folder.read("timing.jsonl")}
        for row in self.folder.read("metrics.jsonl"):
            if row["step"] <= self.step:
                _log(tracker, row["step"], _numbers_of_step(row, seconds.get(row["step"], math.nan)))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in tuple(self.trackers.items()):
            self._guarded(name, lambda tracker=tracker: act(tracker))

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as problem:
            self.trackers.pop(name, None)
            self.inner.on_event(self.step, "warning", f"tracker {name} raised an error and gets no more of this run: {first_line(problem)}")


def _log(tracker: Tracker, step: int, numbers: Mapping[str, float]) -> None:
    if step >= tracker.next_step:
        tracker.log(step, numbers)


def _numbers_of_step(row: Mapping[str, Any], seconds: float) -> dict[str, float]:
    return {name: value for name, value in numbers_in(row).items() if name != "step"} | {"seconds": seconds}


def numbers_in(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """{"before": {"greedy": 0.5}} as {"before/greedy": 0.5}; values that are not numbers are dropped."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            numbers |= numbers_in(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[prefix + name] = value
    return numbers


IDENTITY_FILE = "trackers.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """The id, project and name under which the trackers know a run."""

    id: str
    project: str
    name: str


def identify(folder: RunDir, track: Track) -> Identity:
    """The stored identity. If the configuration names another project or run name, a new one is made and stored."""
    stored = _stored(folder)
    # The stored name is used first: the folder may have been renamed since.
    name = track.name or (folder.path.absolute().name if stored is None else stored.name)
    if stored is not None and (stored.project, stored.name) == (track.project, name):
        return stored
    # `secrets` leaves the generators that training draws from untouched.
    fresh = Identity(secrets.token_hex(4), track.project, name)
    folder.write_json(IDENTITY_FILE, asdict(fresh))
    return fresh


def _stored(folder: RunDir) -> Identity | None:
    """None if the file is missing or damaged: tracking under a new id is better than no tracking."""
    try:
        found = json.loads((folder.path / IDENTITY_FILE).read_text(encoding="utf-8"))
        return Identity(str(found["id"]), str(found["project"]), str(found["name"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def quiet() -> Iterator[None]:
    """Discard what a tracker package prints: it would disturb the progress line.

    This also prevents interactive prompts, because standard error is then no terminal.
    """
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield

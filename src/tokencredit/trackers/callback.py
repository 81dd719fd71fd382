"""The listener that passes on what it hears, and tells trackers of it. No text of a prompt or a response goes to them.

Under which id a run is known to its trackers, kept in its folder so that it goes on under the same one.

Packages that talk while a progress line is drawn.
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
from tokencredit.trackers import Tracked, Tracker, tracker_class
from tokencredit.trainer.callbacks import Callback
from tokencredit.trainer.evaluate import Accuracy

FILE = "trackers.json"


@dataclass(frozen=True, slots=True)
class Identity:
    id: str
    project: str
    name: str


def identify(folder: RunDir, track: Track) -> Identity:
    """The stored one, unless another project or name is asked for: there the run is a new one."""
    stored = _stored(folder)
    # A folder may have been renamed since.
    name = track.name or (folder.path.absolute().name if stored is None else stored.name)
    if stored is not None and (stored.project, stored.name) == (track.project, name):
        return stored
    # Not from a generator that training draws from.
    fresh = Identity(secrets.token_hex(4), track.project, name)
    folder.write_json(FILE, asdict(fresh))
    return fresh


def _stored(folder: RunDir) -> Identity | None:
    """None for a damaged file too: the numbers are worth more under a new id than nowhere."""
    try:
        found = json.loads((folder.path / FILE).read_text(encoding="utf-8"))
        return Identity(str(found["id"]), str(found["project"]), str(found["name"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


WITHOUT_DATA = ("warning", "guard", "damaged", "out-of-memory")
"""Kinds of events that tell of numbers and files. Others may quote an answer after a colon, which stays in the run folder."""


class Tracking:
    """A Listener. A tracker that fails is left out with a word; the others, and the run, go on."""

    def __init__(self, config: TrainConfig, folder: Path, inner: Callback, *, active: bool = True) -> None:
        """Not active: of several processes one tracks."""
        self.config, self.folder, self.inner = config, RunDir(folder), inner
        self.names = config.track.to if active else ()
        self.trackers: dict[str, Tracker] = {}
        self.step, self.begun, self.finished = 0, False, False
        self.early: list[tuple[int, str, str]] = []
        """What was told before the run began: until then there may be no folder."""

    def __enter__(self) -> Self:
        return self

    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        self.inner.on_train_begin(policy, before, step)
        self.step, self.begun = step, True
        for name in self.names:
            self._guarded(name, lambda name=name: self._open(name, before))
        for told in self.early:
            self._each(lambda tracker, told=told: tracker.note(*told))

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

    def concluded(self, result: Mapping[str, Any]) -> None:
        """Empty for a run that was interrupted."""
        self.finished = bool(result)
        if result:
            self._each(lambda tracker: tracker.conclude(self.step, numbers_in(result, "result/")))

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(problem, GuardError):
            self._each(lambda tracker: tracker.note(self.step, "stopped", str(problem).partition(":")[0]))
        self._each(lambda tracker: tracker.close(finished=self.finished))

    def _open(self, name: str, before: Accuracy) -> None:
        """And catch up: a tracker may be new to a run that goes on, or may have lost its last rows in a kill."""
        known = identify(self.folder, self.config.track)
        config = self.config.model_dump(mode="json")
        path = self.folder.path.absolute()
        run = Tracked(folder=path, id=known.id, project=known.project, name=known.name, config=config, step=self.step)
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
            self.inner.on_event(self.step, "warning", f"{name} fails and is told no more of this run: {first_line(problem)}")


def _log(tracker: Tracker, step: int, numbers: Mapping[str, float]) -> None:
    if step >= tracker.next_step:
        tracker.log(step, numbers)


def _numbers_of_step(row: Mapping[str, Any], seconds: float) -> dict[str, float]:
    return {name: value for name, value in numbers_in(row).items() if name != "step"} | {"seconds": seconds}


def numbers_in(found: Mapping[str, Any], above: str = "") -> dict[str, float]:
    """{"before": {"greedy": 0.5}} as {"before/greedy": 0.5}; whatever is no number is left out."""
    numbers: dict[str, float] = {}
    for name, value in found.items():
        if isinstance(value, Mapping):
            numbers |= numbers_in(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[above + name] = value
    return numbers


@contextmanager
def quiet() -> Iterator[None]:
    """Drops what is printed. Nor can anything be asked: where standard error is no terminal, nobody would answer."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield

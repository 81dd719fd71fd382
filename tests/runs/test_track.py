"""Trackers: every number once, with its step, whatever stopped the run; one that fails is left out and nothing else changes."""

import json
import os
import signal
import sqlite3
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.runs import Silent, files_of, rows_of, run, same_weights, small_config
from engine.wandb_file import read_offline_runs
from fault.command import SMALL, assert_refused, tokencredit, tokencredit_with
from forked import run_forked
from tokencredit.commands.flags import parse_train
from tokencredit.config.resolve import resolve, to_toml
from tokencredit.config.resume import accepted_changes
from tokencredit.config.train import Track, TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.storage.run_dir import RunDir
from tokencredit.trackers import TRACKERS, TrackedRun
from tokencredit.trackers.callback import TrackerCallback, identify, numbers_in
from tokencredit.trainer.evaluate import Accuracy
from tokencredit.trainer.loop import train
from tokencredit.trainer.signals import StopSignal

Points = dict[str, list[tuple[int, float]]]
BEFORE = Accuracy(greedy=0.25, sampled=0.5, pass_at_k=0.75, k=2, mixed_groups=0.5, length=9.0, problems=4)


def tracked_run(config: TrainConfig, folder: Path, inner: Silent, *, resume: bool = False) -> None:
    with TrackerCallback(config, folder, inner) as tracking:
        outcome = train(config, folder, tracking, StopSignal(), resume=resume)
        tracking.log_result(outcome.result)


class Listening(Silent):
    def __init__(self, after: Callable[[int], None] = lambda step: None) -> None:
        super().__init__(after)
        self.heard: list[tuple[int, str, str]] = []

    def on_event(self, step: int, kind: str, message: str) -> None:
        self.heard.append((step, kind, message))


class Recorded:
    """Stands in for a package, and fails where it is told to."""

    made: ClassVar[list["Recorded"]] = []
    failing: ClassVar[str] = ""
    next_step: int = 0

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.calls = run, list[tuple[Any, ...]]()
        self.made.append(self)
        self._note("open")

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.failing:
            raise RuntimeError(f"{call[0]}: no route to host\nand much more")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._note("log", step, dict(numbers))

    def note(self, step: int, kind: str, message: str) -> None:
        self._note("note", step, kind, message)

    def conclude(self, step: int, numbers: Mapping[str, float]) -> None:
        self._note("conclude", step, dict(numbers))

    def close(self, *, finished: bool) -> None:
        self._note("close", finished)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    """In place of wandb."""
    monkeypatch.setattr(Recorded, "made", [])
    monkeypatch.setattr(Recorded, "failing", "")
    monkeypatch.setattr(Recorded, "next_step", 0)
    monkeypatch.setitem(TRACKERS, "wandb", f"{__name__}:Recorded")
    return Recorded


def wanted(folder: Path) -> Points:
    """What the folder of a finished run holds: metrics, clocks, accuracy before, the result."""
    result = json.loads((folder / "result.json").read_text())
    points: Points = {name: [(0, value)] for name, value in numbers_in(result["before"], "held_out/").items()}
    for row, timing in zip(rows_of(folder), rows_of(folder, "timing.jsonl"), strict=True):
        for name, value in (row | {"seconds": sum(timing["seconds"].values())}).items():
            if name != "step":
                points.setdefault(name, []).append((row["step"], value))
    return points | {name: [(result["steps"], value)] for name, value in numbers_in(result, "result/").items()}


def in_tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def in_trackio(database: Path) -> tuple[set[tuple[str, str]], Points]:
    points: Points = {}
    with sqlite3.connect(database) as connection:
        rows = list(connection.execute("select run_name, run_id, step, metrics from metrics order by id"))
    for *_, step, metrics in rows:
        for name, value in json.loads(metrics).items():
            points.setdefault(name, []).append((step, value))
    return {(name, run_id) for name, run_id, *_ in rows}, points


def assert_same(found: Points, want: Points) -> None:
    assert found.keys() == want.keys()
    for name, points in want.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=1e-6), name


def _crash(step: int) -> None:
    if step == 4:
        raise RuntimeError("the machine catches fire")


def _kill(step: int) -> None:
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)


def _alone(place: Path, to: list[str], after: Callable[[int], None] | None, resume: bool) -> None:
    """A run whose trackers keep everything below `place`. A checkpoint is made after step 2; step 3 is taken again."""
    kept = {"HOME": "home", "TRACKIO_DIR": "trackio", "WANDB_CACHE_DIR": "cache", "WANDB_CONFIG_DIR": "settings"}
    os.environ.update({name: str(place / folder) for name, folder in kept.items()})
    os.environ.update(WANDB_MODE="offline", WANDB_ERROR_REPORTING="false")
    config = small_config(save_every=2, track={"to": to})
    tracked_run(config, place / "run", Silent() if after is None else Silent(after), resume=resume)


def test_several_at_once_and_every_number_once_after_a_crash(tmp_path: Path) -> None:
    everyone = ["trackio", "wandb", "tensorboard"]
    crashed = run_forked(partial(_alone, tmp_path, everyone, _crash, False), cwd=tmp_path)
    assert crashed.returncode == 1
    assert "catches fire" in crashed.stderr
    known = json.loads((tmp_path / "run" / "trackers.json").read_text())
    resumed = run_forked(partial(_alone, tmp_path, everyone, None, True), cwd=tmp_path)
    assert (resumed.returncode, resumed.stdout, resumed.stderr) == (0, "", "")
    assert json.loads((tmp_path / "run" / "trackers.json").read_text()) == known
    want = wanted(tmp_path / "run")
    assert [step for step, _ in want["loss"]] == [1, 2, 3, 4]

    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 2
    assert_same(in_tensorboard(tmp_path / "run"), want)

    runs, points = in_trackio(tmp_path / "trackio" / "tokencredit.db")
    assert [name for name, _ in runs] == [f"run-{known['id']}"]
    # Its first row of step 3 stays, and the clock is the only number that differs.
    assert [step for step, _ in points["seconds"]] == [step for step, _ in want["seconds"]]
    assert_same(points | {"seconds": want["seconds"]}, want)

    first, second = read_offline_runs(tmp_path / "run")
    assert first[:3] == second[:3] == (known["id"], "tokencredit", "run")
    assert ([step for step, _ in first.steps], first.exit_code) == ([0, 1, 2, 3], 1)
    assert ([step for step, _ in second.steps], second.exit_code) == ([0, 1, 2, 3, 4], 0)
    in_rows = {name: points for name, points in want.items() if not name.startswith("result/")}
    assert_same({name: [(step, row[name]) for step, row in second.steps if name in row] for name in in_rows}, in_rows)
    assert second.summary["result/after/greedy"] == want["result/after/greedy"][0][1]
    assert (second.config["recipe"], second.config["sampling"]["prompts"]) == ("delta", 6)


def test_a_killed_run_misses_nothing_in_tensorboard(tmp_path: Path) -> None:
    killed = run_forked(partial(_alone, tmp_path, ["tensorboard"], _kill, False), cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    assert [step for step, _ in in_tensorboard(tmp_path / "run")["loss"]] == [1, 2, 3]
    assert run_forked(partial(_alone, tmp_path, ["tensorboard"], None, True), cwd=tmp_path).returncode == 0
    assert_same(in_tensorboard(tmp_path / "run"), wanted(tmp_path / "run"))


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untracked") / "run"
    run(small_config(steps=2), folder)
    return folder


@pytest.mark.parametrize("failing", ["open", "log", "conclude", "close"])
def test_one_that_fails_is_left_out_and_the_run_is_the_same(
    tmp_path: Path, untracked: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr(Recorded, "failing", failing)
    inner = Listening()
    tracked_run(small_config(steps=2, track={"to": ["wandb", "tensorboard"]}), tmp_path / "run", inner)
    said = f"tracker wandb raised an error and gets no more of this run: {failing}: no route to host"
    assert inner.heard == [({"open": 0, "log": 0}.get(failing, 2), "warning", said)]
    assert [call[0] for call in recorded.made[0].calls].count(failing) == 1
    assert recorded.made[0].calls[-1][0] == failing
    assert_same(in_tensorboard(tmp_path / "run"), wanted(tmp_path / "run"))
    assert same_weights(tmp_path / "run", untracked)
    assert _beside_tracking(tmp_path / "run") == _beside_tracking(untracked)


def _beside_tracking(folder: Path) -> dict[str, bytes]:
    """The environment holds what differs from the last commit, which may change while tests run."""
    own = ("tensorboard/", "trackers.json", "config.toml", "env.json")
    return {name: held for name, held in files_of(folder).items() if not name.startswith(own)}


def test_what_a_tracker_is_told(tmp_path: Path, recorded: type[Recorded]) -> None:
    config, inner = small_config(track={"to": ["wandb"], "name": "mine"}), Listening()
    with TrackerCallback(config, tmp_path, inner) as tracking:
        tracking.on_event(0, "gold", "2 of 9 gold answers are not graded right and are left out: line 3 of 'x': the answer 'secret'")
        assert not recorded.made
        tracking.on_train_begin(None, BEFORE, 0)  # pyright: ignore[reportArgumentType]
        tracking.on_step_end({"step": 1, "loss": 0.5, "tokens": 7, "refused": True, "words": "no number"}, 1.5)
        tracking.on_event(1, "warning", "entropy is 0.01: below guard.entropy_share")
        tracking.log_result({"recipe": "delta", "steps": 4, "after": {"greedy": 1.0}})
    (tracker,) = recorded.made
    assert tracker.calls == [
        ("open",),
        ("log", 0, {f"held_out/{name}": value for name, value in BEFORE.to_json().items()}),
        ("note", 0, "gold", "2 of 9 gold answers are not graded right and are left out"),
        ("log", 1, {"loss": 0.5, "tokens": 7, "seconds": 1.5}),
        ("note", 1, "warning", "entropy is 0.01: below guard.entropy_share"),
        ("conclude", 1, {"result/steps": 4, "result/after/greedy": 1.0}),
        ("close", True),
    ]
    assert len(inner.heard) == 2
    assert "secret" in inner.heard[0][2]
    assert (tracker.run.name, tracker.run.project, tracker.run.folder, tracker.run.step) == ("mine", "tokencredit", tmp_path, 0)
    assert json.loads(json.dumps(tracker.run.config)) == tracker.run.config == config.model_dump(mode="json")


@pytest.mark.parametrize(("held", "logged"), [(0, [0, 1, 2, 3]), (2, [2, 3]), (3, [3]), (4, [])])
def test_a_tracker_is_told_what_it_does_not_have_and_nothing_twice(
    tmp_path: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch, held: int, logged: list[int]
) -> None:
    """The run goes on from step 2, and takes step 3, which the tracker may have, again."""
    monkeypatch.setattr(Recorded, "next_step", held)
    folder = RunDir(tmp_path)
    for step in (1, 2, 3):
        folder.append("metrics.jsonl", {"step": step, "loss": step / 2})
        folder.append("timing.jsonl", {"step": step, "seconds": {"sample": 1.0, "update": step}})
    with TrackerCallback(small_config(track={"to": ["wandb"]}), tmp_path, Silent()) as tracking:
        tracking.on_train_begin(None, BEFORE, 2)  # pyright: ignore[reportArgumentType]
        tracking.on_step_end({"step": 3, "loss": 1.5}, 4.0)
    before = {f"held_out/{name}": value for name, value in BEFORE.to_json().items()}
    numbers = [before, *({"loss": step / 2, "seconds": 1.0 + step} for step in (1, 2, 3))]
    assert [call for call in recorded.made[0].calls if call[0] == "log"] == [("log", step, numbers[step]) for step in logged]


def test_a_run_that_a_guard_stopped_says_why(tmp_path: Path, recorded: type[Recorded]) -> None:
    why = GuardError("30.0 % of the responses could not be graded: the answer 'secret' (9); that is more than guard.ungraded_share allows")
    tracking = TrackerCallback(small_config(track={"to": ["wandb"]}), tmp_path, Silent())
    tracking.on_train_begin(None, BEFORE, 2)  # pyright: ignore[reportArgumentType]
    tracking.__exit__(GuardError, why, None)
    assert recorded.made[0].calls[-2:] == [("note", 2, "stopped", "30.0 % of the responses could not be graded"), ("close", False)]


def test_one_that_fails_at_an_event_hears_no_more(tmp_path: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "failing", "note")
    inner = Listening()
    with TrackerCallback(small_config(track={"to": ["wandb"]}), tmp_path, inner) as tracking:
        tracking.on_train_begin(None, BEFORE, 3)  # pyright: ignore[reportArgumentType]
        tracking.on_event(3, "damaged", "checkpoint step-000004 was passed over")
        tracking.on_step_end({"step": 4, "loss": 1.0}, 1.0)
    assert [call[0] for call in recorded.made[0].calls] == ["open", "log", "note"]
    assert [(step, kind) for step, kind, _ in inner.heard] == [(3, "damaged"), (3, "warning")]


def test_the_command_tracks_and_a_resume_may_add_and_leave_out(tmp_path: Path) -> None:
    def command(*arguments: str) -> None:
        done = tokencredit("train", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    command("--out", "run", "--steps", "1", *SMALL)
    assert not (tmp_path / "run" / "trackers.json").exists()
    command("--resume", "run", "--steps", "2", "--track.to", "tensorboard", "--no-report")
    held = in_tensorboard(tmp_path / "run")
    assert_same(held, wanted(tmp_path / "run"))
    command("--resume", "run", "--steps", "3", "--track.to", "--no-report")
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [1, 2, 3]
    assert in_tensorboard(tmp_path / "run") == held


def test_only_one_of_several_processes_tracks(tmp_path: Path, recorded: type[Recorded]) -> None:
    with TrackerCallback(small_config(track={"to": ["wandb"]}), tmp_path, Silent(), active=False) as tracking:
        tracking.on_train_begin(None, BEFORE, 0)  # pyright: ignore[reportArgumentType]
        tracking.on_step_end({"step": 1}, 1.0)
    assert not recorded.made
    assert not list(tmp_path.iterdir())


def test_a_run_keeps_its_id_unless_it_goes_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    first = identify(RunDir(tmp_path / "run"), Track())
    assert (first.project, first.name) == ("tokencredit", "run")
    renamed = RunDir((tmp_path / "run").rename(tmp_path / "moved"))
    assert identify(renamed, Track()) == first
    elsewhere = identify(renamed, Track(project="other"))
    assert elsewhere.id != first.id
    assert identify(renamed, Track(project="other")) == elsewhere
    (tmp_path / "moved" / "trackers.json").write_text('{"id": "12')
    assert identify(renamed, Track()).id not in (first.id, elsewhere.id)


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_missing_package_is_refused_before_anything_is_written(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "wandb").mkdir()  # as wandb leaves one behind; it is no package
    done = tokencredit_with("wandb", None, "train", "--out", "run", "--track.to", "tensorboard", "wandb", *more, *SMALL, cwd=tmp_path)
    said = 'tokencredit: track.to has wandb, which is not installed; leave it out, or: pip install "tokencredit[track]"'
    assert (done.returncode, done.stderr.strip(), done.stdout) == (2, said, "")
    assert [path.name for path in tmp_path.iterdir()] == ["wandb"]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ('to = ["wnb"]', "track.to.0 is 'wnb': Input should be 'trackio', 'wandb' or 'tensorboard'"),
        ('to = "wandb"', "track.to is 'wandb': Input should be a list"),
        ('to = ["wandb", "wandb"]', "track.to names wandb more than once; name it once"),
        ('project = "a/b"', "track.project is 'a/b'"),
    ],
)
def test_what_cannot_be_tracked_is_refused(tmp_path: Path, written: str, words: str) -> None:
    (tmp_path / "mine.toml").write_text(f"[track]\n{written}\n")
    assert_refused(["train", "mine.toml", "--out", "run"], words, tmp_path)


def test_files_and_flags_choose_trackers(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[track]\nto = ["wandb", "tensorboard"]\nname = "mine"\n')
    config = parse_train([str(tmp_path / "mine.toml")]).config
    assert config.track == Track(to=("wandb", "tensorboard"), name="mine")
    assert resolve([tomllib.loads(to_toml(config))]) == config
    assert parse_train([str(tmp_path / "mine.toml"), "--track.to", "trackio", "wandb", "--seed", "3"]).config.track.to == (
        "trackio",
        "wandb",
    )
    none = parse_train([str(tmp_path / "mine.toml"), "--track.to"]).config
    assert none.track.to == ()
    assert accepted_changes(config, none) == {"track.to": (("wandb", "tensorboard"), ())}
    with pytest.raises(ConfigError, match="seed is 1"):
        accepted_changes(config, config.model_copy(update={"seed": 1}))

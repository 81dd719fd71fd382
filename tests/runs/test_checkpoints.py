"""Checkpoints: whole or not there, every damage found, the newest whole one wins, what was asked for is kept, nothing is unpickled."""

import json
import os
import pickle
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.runs import files_of, newest, run, same_weights, small_config
from fault.command import tokencredit
from forked import run_forked
from tokencredit.errors import ConfigError
from tokencredit.models import model_folder
from tokencredit.report.headline import headline
from tokencredit.report.run_reader import Run
from tokencredit.storage import manifest as manifests
from tokencredit.storage.checkpoints import CheckpointPosition, checkpoints_in, newest_intact, to_keep
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir
from tokencredit.trainer.resume import find_resume_point

CUT_AT = 3


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after three steps, with checkpoints of the last two."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run(small_config(), folder, stop_after=CUT_AT)
    return folder


@pytest.fixture
def cut(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "cut"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(small_config(), folder)
    return folder


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


def test_every_file_truncated_emptied_removed_and_flipped_in_turn_is_noticed(cut: Path) -> None:
    checkpoint = newest(cut)
    assert damage(checkpoint) is None
    names = [path.name for path in sorted(checkpoint.iterdir())]
    assert {"model.safetensors", "optimizer.safetensors", "generators.safetensors", "state.json", "manifest.json", "config.json"} <= set(
        names
    )
    for name in names:
        path, content = checkpoint / name, (checkpoint / name).read_bytes()
        for at in (0, len(content) // 2, len(content) - 1):
            flip(path, at)
            assert damage(checkpoint) == f"{name} is not as it was written", (name, at)
            path.write_bytes(content)
        for kept in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:kept])
            assert damage(checkpoint) == f"{name} is not as it was written", (name, kept)
        path.unlink()
        missing = "it has no manifest.json" if name == "manifest.json" else f"{name} is missing"
        assert damage(checkpoint) == missing
        path.write_bytes(content)
        assert damage(checkpoint) is None


def test_a_file_that_does_not_belong_or_is_a_link_is_noticed(cut: Path) -> None:
    checkpoint = newest(cut)
    (checkpoint / "pytorch_model.bin").write_bytes(b"a pickle")
    assert damage(checkpoint) == "pytorch_model.bin does not belong to it"
    (checkpoint / "pytorch_model.bin").unlink()
    elsewhere = cut / "elsewhere"
    (checkpoint / "state.json").rename(elsewhere)
    (checkpoint / "state.json").symlink_to(elsewhere)
    assert damage(checkpoint) == "state.json is not as it was written"


def test_a_check_of_sizes_alone_would_let_a_flipped_bit_through(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin: hashes forgotten."""
    checkpoint = newest(cut)
    described = manifests._describe

    def sizes_only(path: Path) -> dict[str, int | str]:
        return described(path) | {"sha256": "not looked at"}

    monkeypatch.setattr(manifests, "_describe", sizes_only)
    (checkpoint / "manifest.json").unlink()
    manifests.write_manifest(checkpoint)
    flip(checkpoint / "model.safetensors", 5000)
    assert damage(checkpoint) is None


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_a_damaged_newest_checkpoint_is_told_and_passed_over(whole: Path, cut: Path, name: str) -> None:
    flip(newest(cut) / name, 20)
    done = tokencredit("train", "--resume", "cut", "--no-report", cwd=cut.parent)
    assert done.returncode == 0, done.stderr
    assert "checkpoint step-000003 was skipped" in done.stdout
    aside = cut / "checkpoints" / "damaged-step-000003"
    assert aside.is_dir()
    events = [json.loads(line) for line in (cut / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events] == ["damaged"]
    shutil.rmtree(aside)
    (cut / "events.jsonl").unlink()
    assert files_of(whole) == files_of(cut)


def test_a_run_without_any_whole_checkpoint_is_refused_and_left_alone(cut: Path) -> None:
    for _, checkpoint in checkpoints_in(cut / "checkpoints"):
        flip(checkpoint / "optimizer.safetensors", 200)
    before = files_of(cut)
    done = tokencredit("train", "--resume", "cut", cwd=cut.parent)
    assert done.returncode == 2
    assert "has no intact checkpoint" in done.stderr
    assert "step-000003: optimizer.safetensors is not as it was written" in done.stderr
    assert files_of(cut) == before


def test_a_run_killed_before_its_first_checkpoint_begins_again(whole: Path, cut: Path) -> None:
    shutil.rmtree(cut / "checkpoints")
    run(small_config(), cut, resume=True)
    assert files_of(whole) == files_of(cut)


def test_what_the_last_few_call_the_best_is_kept_beside_them_and_every_mth() -> None:
    places = [CheckpointPosition(step) for step in range(1, 13)] + [CheckpointPosition(12, 2)]
    best = {CheckpointPosition(12): 5, CheckpointPosition(12, 2): 8}
    assert to_keep(places, best, last=2, every=0) == {
        CheckpointPosition(5),
        CheckpointPosition(8),
        CheckpointPosition(12),
        CheckpointPosition(12, 2),
    }
    assert to_keep(places, best, last=3, every=4) == {
        CheckpointPosition(4),
        CheckpointPosition(5),
        CheckpointPosition(8),
        CheckpointPosition(11),
        CheckpointPosition(12),
        CheckpointPosition(12, 2),
    }
    assert to_keep(places, {}, last=2, every=0) == {CheckpointPosition(12), CheckpointPosition(12, 2)}


def test_a_run_keeps_the_last_two_every_mth_and_the_best(tmp_path: Path) -> None:
    run(small_config(steps=7, keep_every=3, evaluation={"every": 1}), tmp_path / "run")
    kept = {path.name for _, path in checkpoints_in(tmp_path / "run" / "checkpoints")}
    best = {json.loads((path / "state.json").read_text())["best_step"] for _, path in checkpoints_in(tmp_path / "run" / "checkpoints")[-2:]}
    assert kept == {CheckpointPosition(step).name for step in {3, 6, 7} | best}
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert model_folder(str(tmp_path / "run")).name == CheckpointPosition(result["best_step"]).name


def test_the_best_of_a_run_is_the_one_with_the_highest_accuracy(tmp_path: Path) -> None:
    run(small_config(steps=4, evaluation={"every": 1}), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: (row["held_out/sampled"], -row["step"]))["step"]
    assert model_folder(str(tmp_path / "run")).name == CheckpointPosition(best).name


def test_without_save_best_only_the_last_is_written_and_no_number_changes(tmp_path: Path) -> None:
    """A rate that ruins the policy: the best is not the last."""
    ruinous = {"save_every": 0, "optimizer": {"learning_rate": 0.05}, "evaluation": {"every": 1}}
    for name, saves in (("with", True), ("without", False)):
        run(small_config(steps=4, save_best=saves, **ruinous), tmp_path / name)
    rows, alike = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("with", "without"))
    assert rows == alike
    best = json.loads((tmp_path / "without" / "result.json").read_text())["best_step"]
    assert best < 4
    assert model_folder(str(tmp_path / "with")).name == CheckpointPosition(best).name
    assert [place for place, _ in checkpoints_in(tmp_path / "without" / "checkpoints")] == [CheckpointPosition(4)]
    assert model_folder(str(tmp_path / "without")).name == CheckpointPosition(4).name
    assert [headline(Run(tmp_path / name)).best_step for name in ("with", "without")] == [str(best), ""]


def test_nothing_is_unpickled_on_the_way_back(whole: Path, cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("something was unpickled")

    for owner, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(owner, name, refuse)
    run(small_config(), cut, resume=True)
    assert files_of(whole) == files_of(cut)


def test_weights_that_are_a_pickle_are_refused(cut: Path, tmp_path: Path) -> None:
    model = tmp_path / "pickled"
    shutil.copytree(newest(cut), model)
    (model / "model.safetensors").unlink()
    torch.save({"weight": torch.ones(2)}, model / "pytorch_model.bin")
    done = tokencredit("train", "--model", "pickled", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be loaded as a causal LM" in done.stderr


def test_code_that_lies_in_a_model_s_folder_is_not_run_unless_asked_for(cut: Path, tmp_path: Path) -> None:
    model = tmp_path / "coded"
    shutil.copytree(newest(cut), model)
    told = json.loads((model / "config.json").read_text())
    told |= {"model_type": "of-its-own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (model / "config.json").write_text(json.dumps(told))
    (model / "own.py").write_text(
        "import pathlib\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'of-its-own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    done = tokencredit("train", "--model", "coded", "--steps", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "ran").exists()
    small = [
        "--sampling.prompts",
        "2",
        "--sampling.group-size",
        "2",
        "--optimizer.steps-per-batch",
        "1",
        "--evaluation.final-problems",
        "4",
    ]
    done = tokencredit("train", "--model", "coded", "--trust-remote-code", "--steps", "1", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").exists()
    assert "shipped with the model" in (tmp_path / "runs" / "001-right-once" / "report.html").read_text()


# --- killed inside a save


def _killed_at(config_changes: dict[str, object], folder: Path, function: str, call: int) -> None:
    """Trains, and dies by SIGKILL at the given call of a function that a save makes."""
    from tokencredit.storage import atomic as writing

    owner, name = {
        "fsync": (os, "fsync"),
        "rename": (Path, "rename"),
        "manifest": (writing, "write_manifest"),
        "remove": (shutil, "rmtree"),
    }[function]
    original = getattr(owner, name)
    left = [call]

    def deadly(*given: object, **named: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    setattr(owner, name, deadly)
    run(small_config(**config_changes), folder)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("fsync", 3),
        ("fsync", 12),
        ("fsync", 22),
        ("fsync", 40),
        ("rename", 1),
        ("rename", 2),
        ("rename", 4),
        ("manifest", 3),
        ("remove", 6),
    ],
)
def test_killed_inside_a_save_nothing_is_lost(whole: Path, tmp_path: Path, function: str, call: int) -> None:
    done = run_forked(partial(_killed_at, {}, tmp_path / "cut", function, call), cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    resumable = (tmp_path / "cut").exists()
    assert not resumable or (tmp_path / "cut" / "config.toml").exists()
    run(small_config(), tmp_path / "cut", resume=resumable)
    assert files_of(whole) == files_of(tmp_path / "cut")
    left = [path.name for path in (tmp_path / "cut").rglob("*") if path.name.endswith((".partial", ".removed"))]
    assert left == []


def test_a_save_that_wrote_straight_to_its_name_would_be_taken_for_whole_only_without_a_manifest(cut: Path) -> None:
    """A half-written folder under the final name, as a trainer without renames would leave it, is never chosen."""
    half = cut / "checkpoints" / "step-000009"
    half.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(newest_intact(cut / "checkpoints").newest / name, half / name)
    point = find_resume_point(RunDir(cut), small_config())
    assert point.checkpoint is not None
    assert point.checkpoint.name == "step-000003"
    assert point.damaged == {half: "it has no manifest.json"}


# --- generators


def test_a_resume_that_forgot_one_generator_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw of the engine follows from the step, so a task that draws from a global generator is needed to show it."""
    from tokencredit.tasks.steps import Steps

    grade = Steps.grade

    def noisy(self: Steps, problem: object, response: str) -> float:
        return float(grade(self, problem, response) or torch.rand(()) < 0.3)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Steps, "grade", noisy)
    run(small_config(), tmp_path / "whole")
    for name in ("right", "forgetful"):
        run(small_config(), tmp_path / name, stop_after=2)
    run(small_config(), tmp_path / "right", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "right")
    monkeypatch.setattr("tokencredit.trainer.run.load_generators", lambda folder: None)
    run(small_config(), tmp_path / "forgetful", resume=True)
    assert not same_weights(tmp_path / "whole", tmp_path / "forgetful")


def test_the_generators_come_back_to_the_draw() -> None:
    import random

    import numpy

    from tokencredit.trainer.rng_state import generator_states, restore_generators, seed_generators

    def draws() -> list[float]:
        return [random.gauss(0, 1), float(numpy.random.normal()), float(torch.randn(())), random.random()]

    seed_generators(3)
    draws()
    states = generator_states()
    first = draws() + draws()
    restore_generators(states)
    assert draws() + draws() == first
    seed_generators(4)
    assert draws() + draws() != first


def test_a_checkpoint_that_lies_about_its_tensors_is_refused_in_words(cut: Path) -> None:
    """Its manifest verifies, but a file in it is not what it should be."""
    checkpoint = newest(cut)
    (checkpoint / "optimizer.safetensors").write_bytes(b"\x00" * 64)
    (checkpoint / "manifest.json").unlink()
    manifests.write_manifest(checkpoint)
    with pytest.raises(ConfigError, match=r"step-000003 cannot be used"):
        run(small_config(), cut, resume=True)

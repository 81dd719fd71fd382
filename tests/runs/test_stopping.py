"""Signals: the optimizer step is finished, what there is is published, exit codes tell what happened, and the run can go on."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.runs import Silent, files_of, newest, run, small_config
from fault.command import SMALL, tokencredit
from fault.interrupting import AskedAt, interrupted_at, optimizer_class
from tokencredit.trainer.loop import train
from tokencredit.trainer.run import Run
from tokencredit.trainer.signals import StopSignal, StopTraining
from tokencredit.trainer.step import PolicyTrainer

STEPS = 400


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tokencredit", "train", "--out", "run", "--steps", str(STEPS), "--tokens-every", "0", *SMALL, *more]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_steps(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"no {count} steps within a minute")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_publishes_the_state_and_leaves_a_run_that_can_go_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path)
    wait_for_steps(tmp_path / "run", 2, process)
    process.send_signal(number)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == code, complaint
    assert "--resume" in said
    assert "interrupt again to leave at once" in complaint
    done = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    state = json.loads((newest(tmp_path / "run") / "state.json").read_text())
    assert 2 <= done < STEPS
    assert state["step"] == done
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_second_signal_leaves_at_once_and_loses_nothing(tmp_path: Path) -> None:
    """The first one is held up by a save that takes for ever."""
    code = (
        "import sys, time\n"
        "from tokencredit.trainer import run\n"
        "def slow(*given, **named):\n"
        "    open('saving', 'w').close()\n"
        "    time.sleep(60)\n"
        "run.save_checkpoint = slow\n"
        f"sys.argv = ['tokencredit', 'train', '--out', 'run', '--steps', '400', '--save-every', '0', *{SMALL!r}]\n"
        "from tokencredit.cli import main\n"
        "main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(tmp_path / "run", 1, process)
    process.send_signal(signal.SIGTERM)
    while not (tmp_path / "saving").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=50)
    assert process.returncode == 130
    assert time.monotonic() - began < 30
    assert tokencredit("train", "--resume", "run", "--dry-run", cwd=tmp_path).returncode == 0


WHERE = {
    "while sampling": (lambda: PolicyTrainer, "collect", 2, "step-000001"),
    "before the plan": (lambda: PolicyTrainer, "plan", 3, "step-000002"),
    "at the first optimizer step": (optimizer_class, "step", 4, "step-000001-1"),
    "at the last optimizer step of a batch": (optimizer_class, "step", 6, "step-000001-3"),
    "while evaluating": (lambda: Run, "evaluate", 2, "step-000001-3"),
}


@pytest.mark.parametrize("where", WHERE)
def test_wherever_a_stop_falls_the_resumed_run_equals_one_that_never_stopped(tmp_path: Path, where: str) -> None:
    config = small_config(recipe="fade", steps=3, optimizer={"steps_per_batch": 3})
    owner, name, calls, published = WHERE[where]
    run(config, tmp_path / "whole")
    saved = interrupted_at(owner(), name, calls, config, tmp_path / "cut")
    assert saved.name == published
    assert (saved / "batch.safetensors").exists() == published.endswith(("-1", "-3"))
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_resume_that_forgot_the_batch_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(steps=3, optimizer={"steps_per_batch": 3})
    run(config, tmp_path / "whole")
    interrupted_at(optimizer_class(), "step", 4, config, tmp_path / "cut")
    monkeypatch.setattr("tokencredit.trainer.run.load_pending", lambda folder, device: None)
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") != files_of(tmp_path / "cut")


def test_a_stop_during_a_look_waits_until_the_look_is_written(tmp_path: Path) -> None:
    config = small_config(steps=3, diagnose={"every": 2})
    run(config, tmp_path / "whole")
    saved = interrupted_at(optimizer_class(), "step", 3, config, tmp_path / "cut")
    assert saved.name == "step-000002"
    assert (tmp_path / "cut" / "findings" / "step-000002.json").exists()
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_stop_that_a_library_swallowed_is_heeded_all_the_same() -> None:
    stop = StopSignal()
    done: list[str] = []

    def library() -> None:
        try:
            stop.request(15)
        except BaseException:
            done.append("swallowed")

    with pytest.raises(StopTraining), stop.interruptible():
        library()
    assert done == ["swallowed"]
    with pytest.raises(StopTraining), stop.interruptible():
        done.append("begun again")
    assert done == ["swallowed"]


def test_work_that_may_not_be_abandoned_is_not() -> None:
    stop, done = StopSignal(), []
    with stop.interruptible(allowed=False):
        stop.request(15)
        done.append("finished")
    assert done == ["finished"]
    assert stop.exit_code == 143


def test_a_stop_while_the_base_is_measured_leaves_a_run_that_begins_again(tmp_path: Path) -> None:
    config = small_config(steps=2)
    run(config, tmp_path / "whole")
    stop = StopSignal()
    with pytest.MonkeyPatch.context() as patch:
        AskedAt(stop, Run, "evaluate", 1, patch)
        assert train(config, tmp_path / "cut", Silent(), stop).interrupted
    assert not list((tmp_path / "cut").glob("checkpoints/*"))
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_resume_from_the_command_line_finishes_the_run(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "run", stop_after=1)
    done = tokencredit("train", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 4
    again = tokencredit("train", "--resume", "run", cwd=tmp_path)
    assert again.returncode == 2
    assert "finished run of 4 steps" in again.stderr


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(tmp_path: Path) -> None:
    run(small_config(steps=2), tmp_path / "run")
    done = tokencredit("train", "--resume", "run", "--steps", "3", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 3
    assert json.loads((tmp_path / "run" / "result-000002.json").read_text())["steps"] == 2
    assert [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]
    assert json.loads((tmp_path / "run" / "resumes.jsonl").read_text())["changed"] == {"steps": [2, 3]}
    assert "steps = 3" in (tmp_path / "run" / "config.toml").read_text()


def test_what_may_not_change_is_refused_field_by_field(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "run", stop_after=2)
    before = files_of(tmp_path / "run")
    flags = ["--optimizer.learning-rate", "0.001", "--credit.lam-min", "0.5", "--seed", "3", "--guard.refused-steps", "9"]
    done = tokencredit("train", "--resume", "run", *flags, cwd=tmp_path)
    assert done.returncode == 2
    for words in ("optimizer.learning_rate is 0.001 but the run was configured with 0.0005", "credit.lam_min is 0.5 but", "seed is 3 but"):
        assert words in done.stderr
    assert "guard" not in done.stderr
    done = tokencredit("train", "--resume", "run", "--steps", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "steps is 1 but the run was configured with 4; it can only increase" in done.stderr
    assert files_of(tmp_path / "run") == before

"""Signals and guards: the step is finished, the run can go on, exit codes tell what happened, bad numbers never reach the weights."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.runs import run, small_config
from fault.command import SMALL, tokencredit
from tokencredit.errors import GuardError


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
def test_a_signal_finishes_the_step_and_leaves_a_run_that_can_go_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    steps = 400
    command = [sys.executable, "-m", "tokencredit", "train", "--out", "run", "--steps", str(steps), "--tokens-every", "0", *SMALL]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(tmp_path / "run", 2, process)
    process.send_signal(number)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == code, complaint
    assert "--resume" in said
    done = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    state = json.loads((tmp_path / "run" / "checkpoints" / "last" / "state.json").read_text())
    assert 2 <= done < steps
    assert state["step"] == done
    assert not (tmp_path / "run" / "result.json").exists()


def test_resume_from_the_command_line_finishes_the_run(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "run", stop_after=1)
    done = tokencredit("train", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 4
    again = tokencredit("train", "--resume", "run", cwd=tmp_path)
    assert again.returncode == 2
    assert "finished run" in again.stderr


def test_a_gradient_that_is_not_finite_stops_before_the_weights_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.engine.local import update

    seen: list[dict[str, torch.Tensor]] = []

    def poisoned(parameters: object, limit: float) -> torch.Tensor:
        return torch.tensor(float("nan"))

    monkeypatch.setattr(update.torch.nn.utils, "clip_grad_norm_", poisoned)
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *rest: (seen.append({}), step(self, *rest)))
    with pytest.raises(GuardError, match=r"gradient norm is nan in optimizer step 1 of 2; the weights were left as they were"):
        run(small_config(), tmp_path / "run")
    assert not seen


def test_the_guard_s_exit_code_is_three(tmp_path: Path) -> None:
    code = (
        "import torch, sys\n"
        "torch.nn.utils.clip_grad_norm_ = lambda *rest: torch.tensor(float('inf'))\n"
        f"sys.argv = ['tokencredit', 'train', '--out', 'run', '--steps', '2', *{SMALL!r}]\n"
        "from tokencredit.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert "tokencredit: stopped: gradient norm is inf" in done.stderr

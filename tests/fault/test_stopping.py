"""Signals and guards: the step is finished, the run can go on, exit codes tell what happened, bad numbers never reach the weights."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.runs import files_of, run, small_config
from fault.command import SMALL, tokencredit
from tokencredit.engine.local.policy import load_policy
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
    with pytest.raises(GuardError, match=r"gradient norm is nan in optimizer step 1 of 2; this step was not taken"):
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


def test_a_policy_of_nan_is_stopped_with_code_three(tmp_path: Path) -> None:
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[5] = float("nan")
    policy.model.save_pretrained(tmp_path / "broken")
    policy.tokenizer.save_pretrained(tmp_path / "broken")
    done = tokencredit("train", "--model", "broken", "--steps", "1", "--evaluation.every", "0", *SMALL, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "probabilities are not finite" in done.stderr


def interrupted(folder: Path) -> None:
    run(small_config(), folder, stop_after=2)


def test_a_line_cut_short_by_a_crash_is_written_again(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "whole")
    interrupted(tmp_path / "cut")
    for name in ("metrics.jsonl", "plans.jsonl", "timing.jsonl"):
        with (tmp_path / "cut" / name).open("a") as file:
            file.write('{"step": 3, "sco')
    done = tokencredit("train", "--resume", "cut/", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_damaged_line_before_the_last_is_named(tmp_path: Path) -> None:
    interrupted(tmp_path / "cut")
    metrics = tmp_path / "cut" / "metrics.jsonl"
    metrics.write_text("rubbish\n" + metrics.read_text())
    done = tokencredit("train", "--resume", "cut", cwd=tmp_path)
    assert done.returncode == 2
    assert "metrics.jsonl is damaged: line 1 is not JSON" in done.stderr


def test_a_crash_between_the_renames_of_a_checkpoint_loses_nothing(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "whole")
    interrupted(tmp_path / "cut")
    checkpoints = tmp_path / "cut" / "checkpoints"
    (checkpoints / "last").rename(checkpoints / "last.old")
    done = tokencredit("train", "--resume", "cut", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_truncated_optimizer_file_is_named(tmp_path: Path) -> None:
    interrupted(tmp_path / "cut")
    file = tmp_path / "cut" / "checkpoints" / "last" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    done = tokencredit("train", "--resume", "cut", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be resumed: optimizer.safetensors" in done.stderr

"""What credit methods carry from step to step is in every checkpoint: a resumed run has the bits of one that never stopped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.runs import files_of, run, same_weights, small_config
from tokencredit.trainer.checkpoint import TrainState, load_train_state

REMEMBERING: dict[str, dict[str, Any]] = {
    "momentum": {"recipe": "delta-momentum"},
    "entropy": {"recipe": "ntf-anneal"},
    "steps": {"recipe": "ntf-anneal", "credit": {"anneal": "steps", "anneal_steps": 3}},
}


@pytest.mark.parametrize("changes", REMEMBERING.values(), ids=REMEMBERING)
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = small_config(**changes)
    run(config, tmp_path / "whole")
    assert run(config, tmp_path / "cut", stop_after=2).interrupted
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_resume_that_forgot_the_direction_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(recipe="delta-momentum")
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop_after=2)

    def forgetful(folder: Path) -> TrainState:
        progress = load_train_state(folder)
        assert "direction" in progress.stage_state["credit"]
        return replace(progress, stage_state={**progress.stage_state, "credit": {}})

    monkeypatch.setattr("tokencredit.trainer.resume.load_train_state", forgetful)
    run(config, tmp_path / "cut", resume=True)
    assert not same_weights(tmp_path / "whole", tmp_path / "cut")

"""Processes that were started together but that accelerate leaves alone are refused, not trained apart."""

from pathlib import Path

import pytest

from conformance.cases import CASES
from in_trl.stored_run import stored_trainer
from tokencredit.engine.trl import trainer as adapter
from tokencredit.engine.trl.settings import refuse_lone_processes
from tokencredit.errors import ConfigError


def test_processes_that_would_train_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_lone_processes(1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse_lone_processes(2)
    with pytest.raises(ConfigError, match=r"2 processes were started but accelerate joins 1; without a GPU set use_cpu=True in GRPOConfig"):
        refuse_lone_processes(1)


def test_a_trainer_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(adapter, "refuse_lone_processes", asked.append)
    stored_trainer(CASES["grpo"], tmp_path)
    assert asked == [1]

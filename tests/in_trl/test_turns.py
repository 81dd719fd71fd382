"""A task of several turns is not TRL's: refused before anything is written."""

from pathlib import Path

import pytest

from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.integrations.trl.run import train


def test_a_task_of_several_turns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.type is 'guess', which converses in turns; TRL samples one response, use engine 'local'"):
        train(resolve([{"engine": "trl", "device": "cpu", "task": {"type": "guess"}}]), tmp_path / "run")
    assert not list(tmp_path.iterdir())

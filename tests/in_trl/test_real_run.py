"""The embedded task learns through TRL, with one process and with two."""

import json
from pathlib import Path
from statistics import mean

import pytest

from in_trl.real_run import BATCHES, reward_curve

MARGIN = 0.1


def _rises(rewards: list[float]) -> None:
    assert len(rewards) == BATCHES
    assert mean(rewards[-4:]) > mean(rewards[:4]) + MARGIN, rewards


def test_one_rank_learns(tmp_path: Path) -> None:
    _rises(reward_curve(tmp_path))


def test_two_ranks_learn(two_ranks: Path) -> None:
    _rises(json.loads((two_ranks / "real_run.0.json").read_text()))


def test_a_flat_curve_is_noticed() -> None:
    with pytest.raises(AssertionError):
        _rises([0.3] * BATCHES)

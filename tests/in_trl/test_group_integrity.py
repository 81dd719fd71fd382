"""Optimizer steps that hold a part of a prompt group: stock TRL has them, ours has none."""

import json
from pathlib import Path

import pytest
from group_integrity_trl import TRAINERS, splitting_shares

from in_trl.two_ranks import RANKS

OURS = [name for name in TRAINERS if name != "stock"]


def test_stock_trl_splits_groups(tmp_path: Path) -> None:
    assert min(splitting_shares(None, tmp_path)) > 0


@pytest.mark.parametrize("name", OURS)
def test_ours_keeps_groups_whole(name: str, tmp_path: Path) -> None:
    assert splitting_shares(TRAINERS[name], tmp_path) == [0.0] * 3


@pytest.mark.parametrize("rank", range(RANKS))
def test_two_ranks(rank: int, two_ranks: Path) -> None:
    found = json.loads((two_ranks / f"integrity.{rank}.json").read_text())
    assert min(found.pop("stock")) > 0
    assert found == dict.fromkeys(OURS, [0.0] * 3)

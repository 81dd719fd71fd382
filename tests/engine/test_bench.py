"""The speed benchmark: it measures what it says, and its arithmetic is right."""

import json
from pathlib import Path

import pytest

from fault.command import tokencredit
from tokencredit.bench.speed import Measured, delta_share


def test_delta_s_share_is_what_it_adds_over_dapo() -> None:
    dapo = Measured([{"sample": 0.5, "score": 0.0, "credit": 0.01, "update": 1.0}] * 3, [100] * 3)
    delta = Measured([{"sample": 0.7, "score": 0.0, "credit": 0.05, "update": 1.25}] * 3, [100] * 3)
    assert dapo.step == pytest.approx(1.51)
    assert delta_share(dapo, delta, hidden=0.02) == pytest.approx((0.04 + 0.02) / 2.0)


def test_the_command_reports_stages_and_writes_every_number(tmp_path: Path) -> None:
    done = tokencredit("bench", "speed", "--steps", "1", "--repeats", "1", "--json", "speed.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "DelTA adds" in done.stdout
    result = json.loads((tmp_path / "speed.json").read_text())
    for recipe in ("dapo", "delta"):
        row = result["recipes"][recipe]
        assert set(row["stages"]) == {"sample", "grade", "score", "credit", "plan", "update"}
        assert row["seconds_per_step"] == pytest.approx(sum(row["stages"].values()), rel=0.01)
        assert row["tokens_per_second"] > 100
    assert result["trl"] is None


def test_the_cost_of_a_look_is_a_ratio_of_steps_of_one_run(tmp_path: Path) -> None:
    done = tokencredit("bench", "microscope", "--steps", "1", "--repeats", "1", "--json", "cost.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "cost.json").read_text())
    seconds = result["seconds"]
    assert result["looked_at_over_plain"]["median"] == pytest.approx(seconds["looked at"] / seconds["plain"])
    assert seconds["looked at"] > seconds["plain"] > 0

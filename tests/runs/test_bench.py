"""The benchmark commands: they measure what they say, and tell what was asked wrongly."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fault.command import tokencredit
from tokencredit.errors import ConfigError
from tokencredit.lab.speed import lm_head
from tokencredit.lab.speed.embedded import Measured, delta_share
from tokencredit.lab.speed.run import SpeedOrder, find_parts, run_speed
from tokencredit.lab.studies.summary import speed_markdown

ROOT = Path(__file__).parents[2]


class Benched(NamedTuple):
    printed: str
    result: dict[str, Any]


def test_delta_s_share_is_what_it_adds_over_dapo() -> None:
    dapo = Measured([{"sample": 0.5, "score": 0.0, "credit": 0.01, "update": 1.0}] * 3, [100] * 3)
    delta = Measured([{"sample": 0.7, "score": 0.0, "credit": 0.05, "update": 1.25}] * 3, [100] * 3)
    assert dapo.step == pytest.approx(1.51)
    assert delta_share(dapo, delta, hidden=0.02) == pytest.approx((0.04 + 0.02) / 2.0)


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> Benched:
    folder = tmp_path_factory.mktemp("bench")
    done = tokencredit("bench", "speed", "--steps", "1", "--repeats", "1", "--json", "speed.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return Benched(done.stdout, json.loads((folder / "speed.json").read_text()))


def test_the_command_reports_stages_and_writes_every_number(benched: Benched) -> None:
    printed, result = benched
    assert "DelTA adds" in printed
    assert "part embedded took" in printed
    assert list(result["parts"]) == ["embedded"]
    assert result["machine"]["device"] == "cpu"
    assert {"torch", "transformers"} <= set(result["environment"]["packages"])
    embedded = result["parts"]["embedded"]
    for recipe in ("dapo", "delta"):
        row = embedded["recipes"][recipe]
        assert set(row["stages"]) == {"sample", "grade", "score", "credit", "plan", "update"}
        assert row["seconds_per_step"] == pytest.approx(sum(row["stages"].values()), rel=0.01)
        assert row["tokens_per_second"] > 100
    assert embedded["trl"] is None


def test_a_committed_result_becomes_markdown(benched: Benched) -> None:
    result = benched.result | {"failed": {"head": "RuntimeError: no such kernel\n  somewhere"}}
    lines = speed_markdown(result).splitlines()
    assert f"torch {result['environment']['packages']['torch']}" in lines[0]
    assert "1 repeats" in lines[0]
    assert "|  | dapo | delta |" in lines
    assert "| --- | ---: | ---: |" in lines
    update = [1000 * result["parts"]["embedded"]["recipes"][name]["stages"]["update"] for name in ("dapo", "delta")]
    assert f"| update | {update[0]:.1f} ms | {update[1]:.1f} ms |" in lines
    assert any(line.startswith("* DelTA adds") for line in lines)
    assert lines[-1] == "Part head failed: RuntimeError: no such kernel"
    assert "| update |" not in speed_markdown(result, ["head"])


def test_the_cost_of_a_look_is_a_ratio_of_steps_of_one_run(tmp_path: Path) -> None:
    done = tokencredit("bench", "microscope", "--steps", "1", "--repeats", "1", "--json", "cost.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "cost.json").read_text())
    seconds = result["seconds"]
    assert result["looked_at_over_plain"]["median"] == pytest.approx(seconds["looked at"] / seconds["plain"])
    assert seconds["looked at"] > seconds["plain"] > 0


def order(parts: str, *, shapes: str | None = None, trl_python: Path | None = None) -> SpeedOrder:
    return SpeedOrder(find_parts(parts, "cpu"), shapes, steps=1, repeats=1, seed=0, device="cpu", trl_python=trl_python)


def silent(*_: object) -> None:
    """Nobody is told."""


def test_a_mistake_is_named() -> None:
    with pytest.raises(ConfigError, match="parts names 'updat'; did you mean 'update'"):
        find_parts("delta,updat", "cpu")
    with pytest.raises(ConfigError, match="parts is empty"):
        find_parts(" , ", "cpu")
    with pytest.raises(ConfigError, match="shapes names 'smollm'; did you mean 'smollm2-135m'"):
        run_speed(order("head", shapes="smollm"), report=silent, finished=silent)
    with pytest.raises(ConfigError, match="trl-python is given but parts is head"):
        run_speed(order("head", trl_python=Path(__file__)), report=silent, finished=silent)
    with pytest.raises(ConfigError, match="trl-python /nowhere does not exist"):
        run_speed(order("embedded", trl_python=Path("/nowhere")), report=silent, finished=silent)


def test_parts_by_default_are_what_the_device_is_for() -> None:
    assert find_parts(None, "cpu") == ("embedded",)
    assert find_parts(None, "cuda") == ("update", "delta", "head", "sampling", "step", "growth")
    assert find_parts("head, update", "cpu") == ("update", "head")


def test_a_part_that_breaks_is_told_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: object) -> dict[str, Any]:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(lm_head, "measure", breaks)
    seen: list[str] = []

    def finished(part: str, result: Mapping[str, Any]) -> None:
        assert (part in result["parts"]) != (part in result["failed"])
        seen.append(part)

    told: list[str] = []
    result = run_speed(order("head,sampling"), report=told.append, finished=finished)
    assert seen == ["head", "sampling"]
    assert list(result["parts"]) == ["sampling"]
    assert result["failed"]["head"].startswith("RuntimeError: no such kernel")
    assert set(result["part_seconds"]) == {"head", "sampling"}
    assert re.fullmatch(r"\[ *\d+ s\] part sampling took \d+ s", told[-1])
    assert result["ceilings"]["flops_per_second"] > 1e8

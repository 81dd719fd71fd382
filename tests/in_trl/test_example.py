"""The example runs, learns, and differs from a stock TRL script by the lines that its docstring shows."""

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

from tokencredit.integrations.trl import CreditGRPOTrainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_grpo.py"


def lines_of(docstring: str, mark: str) -> list[str]:
    """Of the diff in the docstring, as they stand in a script."""
    indented = [line[4:] for line in docstring.splitlines() if line.startswith(f"    {mark}")]
    return [line.removeprefix(mark) for line in indented]


def without_comment(line: str) -> str:
    return line.split("  #")[0].rstrip()


def stock_script(source: str) -> str:
    """The example with the added lines of its diff taken out and the removed ones put back."""
    docstring = ast.get_docstring(ast.parse(source), clean=False) or ""
    added, removed = lines_of(docstring, "+"), lines_of(docstring, "-")
    assert (len(added), len(removed)) == (4, 2)
    body = [without_comment(line) for line in source.replace(docstring, "").splitlines()]
    for line in added:
        assert body.count(line) == 1, line
    starts = {added[0]: removed[0], added[2]: removed[1]}
    return "\n".join(starts.get(line, line) for line in body if line not in added or line in starts)


def run(script: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> dict[str, Any]:
    monkeypatch.setattr("sys.argv", [str(script), "--steps", str(steps), "--out", str(folder)])
    return runpy.run_path(str(script), run_name="__main__")


def test_it_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = run(EXAMPLE, tmp_path, monkeypatch, steps=72)["trainer"]
    assert isinstance(trainer, CreditGRPOTrainer)
    told = [row for row in trainer.state.log_history if "reward" in row]
    assert len(told) == 3
    assert told[0]["reward"] < 0.4
    assert told[-1]["reward"] > told[0]["reward"] + 0.1
    assert [row["tokencredit/steps_splitting_groups"] for row in told] == [0, 0, 0]
    assert "mean reward of every six batches:" in capsys.readouterr().out


def test_the_diff_leads_back_to_stock_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "stock.py"
    script.write_text(stock_script(EXAMPLE.read_text()))
    assert "tokencredit.integrations" not in script.read_text()
    trainer = run(script, tmp_path / "out", monkeypatch, steps=4)["trainer"]
    assert type(trainer).__module__.startswith("trl.")
    assert trainer.state.global_step == 4

"""`tokencredit compare` in earnest: two recipes, two seeds, small steps of the embedded default."""

import json
from pathlib import Path

import pytest

from fault.command import SMALL, tokencredit


def test_two_recipes_over_two_seeds(tmp_path: Path) -> None:
    asked = ["compare", "--recipes", "dapo,delta:credit.scope=group", "--seeds", "2", "--out", "found", "--steps", "3"]
    small = [word for word in SMALL if word != "--no-report"]
    done = tokencredit(*asked, *small, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("4/4", "paired differences to dapo", "delta:credit.scope=group", "The learning rate was not tuned", "add random-lambda"):
        assert words in done.stdout
    told = json.loads((tmp_path / "found" / "comparison.json").read_text())
    assert len(told["runs"]) == 4
    assert (told["missing"], told["failed"]) == (0, [])
    by_place = {(row["recipe"], row["seed"]): row for row in told["runs"]}
    for seed in (0, 1):
        one, other = by_place["dapo", seed], by_place["delta:credit.scope=group", seed]
        # Common random numbers: the same base, held-out problems and first prompts, so the same accuracy before any training.
        for name in ("held_out_sha256", "first_prompts_sha256", "before"):
            assert one[name] == other[name]
        assert one["rollouts"] == other["rollouts"] == 3 * 16
        assert [rollouts for rollouts, _ in one["curve"]] == [0, 32, 48]
    # Seeds train on prompts of their own and are measured on the same problems.
    assert by_place["dapo", 0]["held_out_sha256"] == by_place["dapo", 1]["held_out_sha256"]
    assert by_place["dapo", 0]["first_prompts_sha256"] != by_place["dapo", 1]["first_prompts_sha256"]
    assert not [note for note in told["notes"] if "not paired" in note or "not shared" in note]
    assert told["summary"]["comparisons"][0]["overall"]["area"]["pairs"] == 2
    assert told["settings"]["by_recipe"]["delta:credit.scope=group"]["credit.scope"] == "group"
    assert told["settings"]["common"]["steps"] == 3
    page = (tmp_path / "found" / "comparison.html").read_text()
    assert "delta:credit.scope=group" in page
    assert page.count('<svg viewBox="0 0 1000 28"') >= 4
    folder = tmp_path / "found" / by_place["dapo", 0]["folder"]
    assert not {"checkpoints", "model", "report.html"} & {path.name for path in folder.iterdir()}
    difference = told["summary"]["comparisons"][0]["overall"]["final"]["low"]
    finals = {place: row["after"]["sampled"] for place, row in by_place.items()}
    assert difference == pytest.approx(sum(finals["delta:credit.scope=group", seed] - finals["dapo", seed] for seed in (0, 1)) / 2)

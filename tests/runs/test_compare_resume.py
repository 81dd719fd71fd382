"""A comparison that is stopped, killed, damaged, or asked for something else: nothing is done twice, nothing half-written is believed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.compare_driver import compare_command
from lab.compare_trainer import ENVIRONMENT, JOURNAL, TROUBLE
from tokencredit.lab.compare.runner import Throttle
from tokencredit.storage.lock import locked

TESTS = Path(__file__).parents[1]
SMALL = ["--recipes", "dapo,delta", "--seeds", "2", "--jobs", "2", "--steps", "3", "--out", "out"]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process: what it said, if it left with the code that is expected."""

    def called(*arguments: str, expect: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            compare_command(*arguments)
        said = "".join(capsys.readouterr())
        assert left.value.code == expect, said
        return said

    return called


def started(place: Path, *arguments: str) -> "subprocess.Popen[str]":
    """The command in a process of its own, once the run that hangs has begun."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lab.compare_driver", *arguments]
    process = subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seed = next(iter(json.loads((place / TROUBLE).read_text()))).split()[1]
    until = time.monotonic() + 60
    while not (run_of(place, "dapo", int(seed)) / "metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return process


def trained(place: Path) -> list[str]:
    return (place / JOURNAL).read_text().splitlines() if (place / JOURNAL).exists() else []


def told(place: Path) -> dict[str, Any]:
    return json.loads((place / "out" / "comparison.json").read_text())


def run_of(place: Path, recipe: str, seed: int) -> Path:
    return place / "out" / "runs" / "steps-shift" / recipe / f"rate-0.0005-seed-{seed}"


OTHER = "rloo:sampling.group_size=4"
ALL = ["dapo 0.0005 0", "dapo 0.0005 1", "delta 0.0005 0", "delta 0.0005 1"]


def test_a_finished_comparison_trains_nothing_and_tells_the_same(tmp_path: Path, compare: Any) -> None:
    first = compare(*SMALL)
    assert sorted(trained(tmp_path)) == ALL
    before = told(tmp_path)
    again = compare(*SMALL)
    assert sorted(trained(tmp_path)) == ALL
    assert told(tmp_path) == before
    assert first.splitlines()[-1] == again.splitlines()[-1]
    assert not (run_of(tmp_path, "dapo", 0) / "checkpoints").exists()
    told_again = compare("--jobs", "0", "--out", "out", "--threshold", "0.5")
    assert "to 50 %" in told_again
    assert told(tmp_path)["runs"] == before["runs"]
    assert sorted(trained(tmp_path)) == ALL


def test_more_seeds_and_recipes_add_to_what_is_there(tmp_path: Path, compare: Any) -> None:
    compare(*SMALL)
    compare(*SMALL, "--seeds", "3", "--recipes", "dapo,delta,grpo")
    assert sorted(trained(tmp_path)) == sorted(
        [*ALL, *(f"{name} 0.0005 2" for name in ("dapo", "delta")), *(f"grpo 0.0005 {seed}" for seed in range(3))]
    )
    assert len(told(tmp_path)["runs"]) == 9


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_in_the_middle_it_goes_on_where_it_was(tmp_path: Path, compare: Any, stop: signal.Signals) -> None:
    """Seed 1 of dapo hangs after its first step; everything else is done by then or still to come."""
    (tmp_path / TROUBLE).write_text(json.dumps({"dapo 1": "hang"}))
    process = started(tmp_path, *SMALL, "--jobs", "1")
    process.send_signal(stop)
    output, errors = process.communicate(timeout=60)
    (tmp_path / TROUBLE).unlink()
    assert trained(tmp_path) == ["dapo 0.0005 0", "delta 0.0005 0", "dapo 0.0005 1"]
    if stop == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert "is in use by process" in compare(*SMALL, expect=2)
        _kill_what_still_trains(run_of(tmp_path, "dapo", 1))
    else:
        assert process.returncode == 130, errors
        assert "Stopped. The same command" in output
        assert told(tmp_path)["missing"] == 2
        assert "2 runs are still missing" in output
    compare(*SMALL)
    assert sorted(trained(tmp_path)) == sorted([*ALL, "dapo 0.0005 1"])
    assert (told(tmp_path)["missing"], len(told(tmp_path)["runs"])) == (0, 4)


def _kill_what_still_trains(folder: Path) -> None:
    """A run outlives a comparison that was killed; it says in its folder who it is, and lets go of the folder when it has ended."""
    number = re.search(r"process (\d+)", (folder / "lock").read_text())
    assert number is not None
    os.kill(int(number[1]), signal.SIGKILL)
    while Path(f"/proc/{number[1]}/exe").exists():
        time.sleep(0.01)


def test_half_written_runs_are_done_again(tmp_path: Path, compare: Any) -> None:
    """No result, half a result, metrics that end too early, no word of the code that trained it."""
    compare(*SMALL, "--seeds", "3")
    (run_of(tmp_path, "dapo", 0) / "result.json").unlink()
    cut = run_of(tmp_path, "dapo", 1) / "result.json"
    cut.write_text(cut.read_text()[:40])
    metrics = run_of(tmp_path, "delta", 0) / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    (run_of(tmp_path, "delta", 1) / "env.json").unlink()
    compare(*SMALL, "--seeds", "3")
    assert sorted(trained(tmp_path)) == sorted([*ALL, *ALL, "dapo 0.0005 2", "delta 0.0005 2"])
    assert len(told(tmp_path)["runs"]) == 6


def test_a_run_of_other_settings_is_refused_by_name_or_trained_again(tmp_path: Path, compare: Any) -> None:
    compare(*SMALL)
    before = told(tmp_path)
    said = compare(*SMALL, "--steps", "4", "--sampling.temperature", "0.9", expect=2)
    assert "sampling.temperature is 0.9 but was 1.0; steps is 4 but was 3" in said
    assert "--stale retrain" in said
    compare(*SMALL, "--steps", "4", "--stale", "keep", expect=2)
    assert sorted(trained(tmp_path)) == ALL
    assert told(tmp_path) == before
    compare(*SMALL, "--steps", "4", "--stale", "retrain")
    assert sorted(trained(tmp_path)) == sorted(2 * ALL)


def test_a_run_of_another_commit_is_refused_kept_or_trained_again(tmp_path: Path, compare: Any) -> None:
    other = "0" * 40
    (tmp_path / ENVIRONMENT).write_text(json.dumps({"commit": other}))
    said = compare(*SMALL)
    assert "4/4" in said
    (tmp_path / ENVIRONMENT).unlink()
    assert "trained by commit 000000000000, the code is commit c0ffee" in compare(*SMALL, expect=2)
    compare(*SMALL, "--stale", "keep")
    assert [row["commit"] for row in told(tmp_path)["runs"]] == [other] * 4
    assert sorted(trained(tmp_path)) == ALL
    (run_of(tmp_path, "dapo", 0) / "result.json").unlink()
    assert "Runs were trained by different code" in compare(*SMALL, "--stale", "keep")
    compare(*SMALL, "--stale", "retrain")
    assert {row["commit"] for row in told(tmp_path)["runs"]} != {other}
    assert len(trained(tmp_path)) == 4 + 1 + 3


def test_changes_to_the_package_that_are_not_committed_count_and_others_do_not(tmp_path: Path, compare: Any) -> None:
    diff = "diff --git a/docs/compare.md b/docs/compare.md\n-one\n+two\n"
    (tmp_path / ENVIRONMENT).write_text(json.dumps({"diff": diff}))
    compare(*SMALL)
    (tmp_path / ENVIRONMENT).write_text(
        json.dumps({"diff": diff + "diff --git a/src/tokencredit/seeds.py b/src/tokencredit/seeds.py\n+two\n"})
    )
    assert "trained with uncommitted changes to the package" in compare(*SMALL, "--seeds", "3")
    assert "with uncommitted changes" in compare(*SMALL, "--seeds", "3", expect=2)
    assert len(trained(tmp_path)) == 6


def test_changes_to_what_only_tells_of_runs_do_not_count(tmp_path: Path, compare: Any) -> None:
    telling = "src/tokencredit/lab/compare/summary.py", "src/tokencredit/report/new.py"
    diff = f"diff --git a/{telling[0]} b/{telling[0]}\n-one\n+two\n"
    (tmp_path / ENVIRONMENT).write_text(json.dumps({"diff": diff, "untracked": {telling[1]: "0" * 64}}))
    compare(*SMALL)
    (tmp_path / ENVIRONMENT).unlink()
    assert "uncommitted" not in compare(*SMALL)
    assert sorted(trained(tmp_path)) == ALL
    moved = f"diff --git a/{telling[0]} b/src/tokencredit/engine/notes.py\nsimilarity index 100%\n"
    (tmp_path / ENVIRONMENT).write_text(json.dumps({"diff": moved}))
    assert "trained with uncommitted changes to the package" in compare(*SMALL, "--seeds", "3")


def test_a_file_of_the_package_that_git_does_not_know_counts_too(tmp_path: Path, compare: Any) -> None:
    (tmp_path / ENVIRONMENT).write_text(json.dumps({"untracked": {"src/tokencredit/new.py": "0" * 64}}))
    assert "trained with uncommitted changes to the package" in compare(*SMALL)
    assert "trained by commit c0ffee with uncommitted changes" in compare(*SMALL, expect=2)


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path: Path, compare: Any) -> None:
    (tmp_path / TROUBLE).write_text(json.dumps({"delta 0": "break"}))
    said = compare(*SMALL, expect=1)
    assert "delta on steps-shift, rate 0.0005, seed 0: FAILED with code 3: stopped: weights are not finite" in said
    assert "1 runs failed (delta on steps-shift at 0.0005)" in said
    found = told(tmp_path)
    assert (len(found["runs"]), found["missing"]) == (3, 0)
    assert [(one["recipe"], one["seed"], one["code"]) for one in found["failed"]] == [("delta", 0, 3)]
    assert found["summary"]["comparisons"][0]["pairs"] == 1
    (tmp_path / TROUBLE).unlink()
    compare(*SMALL)
    assert sorted(trained(tmp_path)) == sorted([*ALL, "delta 0.0005 0"])
    assert (told(tmp_path)["failed"], len(told(tmp_path)["runs"])) == ([], 4)


def test_what_is_saved_on_the_way_may_change_and_nothing_is_trained_again(tmp_path: Path, compare: Any) -> None:
    compare(*SMALL)
    assert told(tmp_path)["settings"]["common"]["save_best"] is False
    compare(*SMALL, "--keep-models", "--save-every", "1")
    assert told(tmp_path)["settings"]["common"]["save_best"] is True
    assert sorted(trained(tmp_path)) == ALL


def test_weights_of_a_run_that_failed_are_not_left_behind(tmp_path: Path, compare: Any) -> None:
    (tmp_path / TROUBLE).write_text(json.dumps({"delta 0": "break later"}))
    failed = run_of(tmp_path, "delta", 0)
    assert "FAILED with code 3: stopped: out of memory" in compare(*SMALL, expect=1)
    assert (failed / "metrics.jsonl").exists()
    assert not (failed / "checkpoints").exists()
    compare(*SMALL, "--keep-models", expect=1)
    assert (failed / "checkpoints").exists()


def test_rates_are_tuned_on_seeds_of_their_own_and_the_best_is_reported(tmp_path: Path, compare: Any) -> None:
    (tmp_path / TROUBLE).write_text(json.dumps({"grpo 10000": "break"}))
    said = compare(*SMALL, "--recipes", "dapo,delta,grpo", "--rates", "1e-4,3e-4,8e-4", "--tune-seeds", "2", expect=1)
    assert "grpo on steps-shift" in said
    found = told(tmp_path)
    tried = [
        f"{name} {rate} {seed}"
        for name in ("dapo", "delta", "grpo")
        for rate in ("0.0001", "0.0003", "0.0008")
        for seed in (10_000, 10_001)
    ]
    reported = [f"{name} 0.0003 {seed}" for name in ("dapo", "delta") for seed in (0, 1)]
    assert sorted(trained(tmp_path)) == sorted([*tried, *reported])
    assert {one["recipe"]: one["best"] for one in found["tuning"]} == {"dapo": 3e-4, "delta": 3e-4, "grpo": None}
    assert not any(one["at_edge"] for one in found["tuning"] if one["best"])
    assert {row["seed"] for row in found["runs"] if row["tuning"]} == {10_000, 10_001}
    assert {one["recipe"] for one in found["summary"]["recipes"]} == {"dapo", "delta"}
    assert found["summary"]["comparisons"][0]["pairs"] == 2


def test_only_the_best_by_tuning_are_run_on_the_reported_seeds(tmp_path: Path, compare: Any) -> None:
    asked = [*SMALL, "--recipes", "dapo,rloo:sampling.group_size=4,delta,grpo", "--rates", "1e-4,3e-4"]
    asked += ["--tune-seeds", "1", "--finalists", "1"]
    assert "# then seeds 0 to 1 of each of the best 1 and of those always included" in compare(*asked, "--dry-run")
    said = compare(*asked)
    assert "recipes that advanced" in said
    assert "2 of 4 recipes advanced after tuning (delta, dapo)" in said
    found = told(tmp_path)
    assert {(row["recipe"], row["seed"]) for row in found["runs"] if not row["tuning"]} == {
        (name, seed) for name in ("dapo", "delta") for seed in (0, 1)
    }
    assert {one["recipe"]: one["goes_on"] for one in found["standings"]} == {"delta": True, "dapo": True, "grpo": False, OTHER: False}
    assert [one["recipe"] for one in found["summary"]["comparisons"]] == ["delta"]
    # Nothing is said of runs that are not reported.
    assert not [note for note in found["notes"] if "Group sizes differ" in note]
    assert found["missing"] == 0
    assert "advanced to the reported seeds" in (tmp_path / "out" / "comparison.html").read_text()
    # More of them add to what is there.
    before = len(trained(tmp_path))
    compare(*asked, "--always", OTHER)
    assert [note for note in told(tmp_path)["notes"] if "Group sizes differ" in note]
    assert [line.split()[0] for line in trained(tmp_path)[before:]] == ["rloo", "rloo"]
    # And a page of old, without standings, is still read.
    old = {name: value for name, value in told(tmp_path).items() if name != "standings"}
    (tmp_path / "out" / "comparison.json").write_text(json.dumps(old))
    compare("--jobs", "0", "--out", "out")


def test_two_comparisons_in_one_folder_are_refused(tmp_path: Path, compare: Any) -> None:
    compare(*SMALL)
    with locked(tmp_path / "out"):
        assert "run folder out is in use by process" in compare(*SMALL, "--seeds", "3", expect=2)
    assert sorted(trained(tmp_path)) == ALL


def test_what_is_finished_can_be_read_before_all_is(tmp_path: Path, compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.lab.commands import compare as command

    seen: list[int] = []

    def written(document: dict[str, Any], out: Path) -> None:
        write_document(document, out)
        seen.append(len(told(tmp_path)["runs"]))

    write_document = command.write_document
    monkeypatch.setattr(command, "write_document", written)
    monkeypatch.setattr(command, "Throttle", lambda act: Throttle(act, least=0.0, share=1.0))
    compare(*SMALL)
    assert seen[0] == 0
    assert seen[-1] == 4
    assert {1, 2, 3} & set(seen[1:-1])

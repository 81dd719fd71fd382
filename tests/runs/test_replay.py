"""A step of a run taken again: the same findings to the byte, from whatever checkpoint; and rollouts of others under the microscope."""

import json
from pathlib import Path

import pytest

from engine.runs import files_of, newest, run, small_config
from fault.command import tokencredit
from tokencredit.analysis.replay import nearest_start, recreate
from tokencredit.errors import ConfigError
from tokencredit.rollout_io.write import rollout_rows, write_rows
from tokencredit.storage.run_dir import RunDir

LOOKS = {"every": 3, "groups": 2, "coupling_tokens": 64}


def read_findings(folder: Path, step: int) -> dict:
    return json.loads((folder / "findings" / f"step-{step:06}.json").read_text())


@pytest.mark.parametrize(("keep_every", "start"), [(0, "the base model"), (2, "checkpoint step-000004")])
def test_a_step_taken_again_finds_the_same_to_the_byte(keep_every: int, start: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(small_config(steps=6, diagnose=LOOKS, keep_every=keep_every, save_every=0, evaluation={"every": 0}), folder)
    stored = {name: content for name, content in files_of(folder).items() if "step-000006" in name and not name.startswith("checkpoints")}
    assert len(stored) == 3
    for name in stored:
        (folder / name).unlink()
    said = tokencredit("diagnose", str(folder), "--step", "6", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert f"Step 6 repeated from {start}; its plan is the recorded plan." in said.stdout
    assert {name: (folder / name).read_bytes() for name in stored} == stored


def test_the_nearest_checkpoint_is_one_from_which_the_step_is_still_to_come(tmp_path: Path) -> None:
    run(small_config(steps=5, keep_every=2), tmp_path / "run")
    folder = RunDir(tmp_path / "run")
    (folder.checkpoints / "step-000004.partial").mkdir()
    assert [nearest_start(folder, step).step for step in (1, 2, 3, 4, 5)] == [0, 0, 2, 2, 4]
    assert nearest_start(folder, 1).checkpoint is None
    assert nearest_start(folder, 5).checkpoint == folder.checkpoints / "step-000004"


def test_a_plan_that_differs_from_the_written_one_is_told(tmp_path: Path) -> None:
    config = small_config(steps=2, diagnose=LOOKS)
    run(config, tmp_path / "run")
    assert recreate(RunDir(tmp_path / "run"), config, 2).same_plan is True
    plans = (tmp_path / "run" / "plans.jsonl").read_text()
    (tmp_path / "run" / "plans.jsonl").write_text(plans.replace('"digest": "', '"digest": "x'))
    assert recreate(RunDir(tmp_path / "run"), config, 2).same_plan is False
    (tmp_path / "run" / "plans.jsonl").unlink()
    assert recreate(RunDir(tmp_path / "run"), config, 2).same_plan is None


def test_steps_outside_the_run_are_refused(tmp_path: Path) -> None:
    config = small_config(steps=2)
    run(config, tmp_path / "run")
    for step in (0, 3):
        with pytest.raises(ConfigError, match=f"step is {step} but the run has steps 1 to 2"):
            recreate(RunDir(tmp_path / "run"), config, step)


def test_only_what_is_asked_for_and_nothing_overwritten(tmp_path: Path) -> None:
    run(small_config(steps=1, diagnose=LOOKS), tmp_path / "run")
    before = files_of(tmp_path / "run")
    refused = tokencredit("diagnose", str(tmp_path / "run"), "--only", "flips,tax", cwd=tmp_path)
    assert refused.returncode == 2
    assert "already exists; replace it with --force, or write to another folder with --out" in refused.stderr
    elsewhere = tokencredit("diagnose", str(tmp_path / "run"), "--only", "flips,tax", "--out", "other", cwd=tmp_path)
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert [finding["name"] for finding in read_findings(tmp_path / "other", 1)["findings"]] == ["flips", "tax"]
    assert files_of(tmp_path / "run") == before
    whole = {finding["name"]: finding for finding in read_findings(tmp_path / "run", 1)["findings"]}
    assert read_findings(tmp_path / "other", 1)["findings"] == [whole["flips"], whole["tax"]]


def test_a_step_with_another_plan_leaves_the_run_s_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(small_config(steps=2, diagnose=LOOKS), folder)
    plans = (folder / "plans.jsonl").read_text()
    (folder / "plans.jsonl").write_text(plans.replace('"digest": "', '"digest": "x'))
    before = files_of(folder)
    refused = tokencredit("diagnose", str(folder), "--step", "2", "--force", cwd=tmp_path)
    assert refused.returncode == 2
    assert "has another plan than the run recorded" in refused.stderr
    assert files_of(folder) == before
    told = tokencredit("diagnose", str(folder), "--step", "2", "--out", "there", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "DIFFERS" in told.stdout
    assert json.loads((tmp_path / "there" / "diagnosis.json").read_text())["subject"] == f"step 2 of {folder}"


def test_a_folder_holds_several_diagnoses_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(small_config(steps=3), folder)
    for step in ("1", "2"):
        done = tokencredit("diagnose", str(folder), "--step", step, "--only", "masses", "--out", "found", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "found" / "findings").glob("*.json")} == {"step-000001.json", "step-000002.json"}
    assert len((tmp_path / "found" / "plans.jsonl").read_text().splitlines()) == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("dear")
    refused = tokencredit("diagnose", str(folder), "--step", "3", "--out", "other", cwd=tmp_path)
    assert "holds something that is not a diagnosis" in refused.stderr
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_nothing_is_sampled_for_findings_that_were_not_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(small_config(steps=1), folder)
    done = tokencredit("diagnose", str(folder), "--only", "flips", "--value-budget", "256", "--drift-budget", "64", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_findings(folder, 1)["rollouts_used"] == 0
    refused = tokencredit("diagnose", str(folder), "--only", "value", "--force", cwd=tmp_path)
    assert "set their number with --value-budget" in refused.stderr


def test_what_a_crash_left_half_written_is_no_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = small_config(diagnose=LOOKS)
    run(config, tmp_path / "whole")
    run(config, folder, stop_after=2)
    for name in ("findings/step-000003.json.partial", "tokens/step-000003.parquet.partial"):
        (folder / name).write_text("half")
    assert tokencredit("diagnose", str(folder), "--only", "masses", "--force", cwd=tmp_path).returncode == 0
    run(config, folder, resume=True)
    assert not list(folder.rglob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to diagnose: give a run folder, or --model DIR and --rollouts FILE"),
        (["nowhere"], "run nowhere is not a run folder: it has no config.toml"),
        (["nowhere", "--only", "flops"], "only names 'flops', which is not a finding; did you mean 'flips'?"),
        (["nowhere", "--recipe", "dapo", "--learning-rate", "1"], "leave out --recipe, --learning-rate"),
        (["--model", "steps-shift"], "nothing to diagnose"),
        (["--model", "steps-shift", "--rollouts", "x.parquet", "--value-budget", "100"], "samples responses that a task must grade"),
        (["--model", "steps-shift", "--rollouts", "x.parquet", "--only", "value"], "samples responses that a task must grade"),
        (["--model", "steps-shift", "--rollouts", "x.parquet"], "x.parquet"),
    ],
)
def test_mistakes_are_told_in_words(arguments: list[str], words: str, tmp_path: Path) -> None:
    said = tokencredit("diagnose", *arguments, cwd=tmp_path)
    assert said.returncode == 2
    assert words in said.stderr
    assert "Traceback" not in said.stderr
    assert not list(tmp_path.iterdir())


def test_rollouts_of_another_trainer_are_looked_at(tmp_path: Path) -> None:
    """A run's own batch, written to a file and looked at from the base, flips as it did in the run."""
    config = small_config(recipe="dapo", steps=1, diagnose=LOOKS | {"groups": 0}, optimizer={"learning_rate": 3e-4, "warmup_steps": 0})
    folder = tmp_path / "run"
    run(config, folder)
    trained = recreate(RunDir(folder), config, 1).batch
    rollouts, scored = trained.credited.rollouts, trained.credited.scored
    write_rows(tmp_path / "rollouts.parquet", rollout_rows(rollouts, scored.score))
    said = tokencredit(
        "diagnose", "--model", "steps-shift", "--rollouts", "rollouts.parquet", "--recipe", "dapo", "--learning-rate", "3e-4",
        "--groups", "0", "--out", "found", "--config", str(folder / "config.toml"), cwd=tmp_path,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    ours, theirs = ({f["name"]: f["numbers"] for f in read_findings(place, 1)["findings"]} for place in (folder, tmp_path / "found"))
    for name in ("flips", "effect", "coupling", "masses", "drift"):
        for key, value in ours[name].items():
            assert theirs[name][key] == pytest.approx(value, rel=1e-3, abs=1e-3, nan_ok=True), (name, key)
    assert (tmp_path / "found" / "config.toml").is_file()
    assert (tmp_path / "found" / "tokens" / "step-000001.parquet").is_file()


def test_looking_at_rollouts_leaves_the_model_s_folder_alone(tmp_path: Path) -> None:
    run(small_config(steps=1), tmp_path / "run")
    model = newest(tmp_path / "run")
    before = {path: path.read_bytes() for path in model.iterdir()}
    answers = {"2+2=": ["a:2+2=4;#4", "b:2+2=5;#5"]}
    rows = [{"prompt": prompt, "response": text, "score": float(text.endswith("4"))} for prompt, texts in answers.items() for text in texts]
    write_rows(tmp_path / "few.jsonl", rows)
    said = tokencredit("diagnose", "--model", str(model), "--rollouts", "few.jsonl", "--recipe", "grpo", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert {path: path.read_bytes() for path in model.iterdir()} == before
    found = {finding["name"]: finding for finding in read_findings(tmp_path / "diagnoses" / "001-grpo", 1)["findings"]}
    assert found["flips"]["numbers"]["without_side"] == 0
    assert found["masses"]["numbers"]["groups"] == 1


def test_a_note_is_printed_as_text_whatever_it_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A class of a rollout file may look like a mark of the library that prints."""
    from tokencredit.commands.diagnose import _print_findings

    _print_findings({"step": 1, "rollouts_used": 0, "findings": [{"name": "effect", "note": "Not so for class [/bold] (0.10)."}]}, tmp_path)
    assert "Not so for class [/bold] (0.10)." in capsys.readouterr().out

"""What a run was trained and tested on is written down, and nothing that is held out is trained on."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.runs import run, small_config
from tokencredit.config import as_kwargs
from tokencredit.errors import ConfigError, GuardError
from tokencredit.seeds import derive_seed
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import TASKS, HeldOut, Problem, Steps
from tokencredit.tasks.split import normalize_prompt, split_of
from tokencredit.trainer.preflight import fingerprint, first_problems, hash_problems, held_out_problems
from tokencredit.trainer.step import PolicyTrainer


def problem(prompt: str, answer: str = "1") -> Problem:
    return Problem(prompt=prompt, answer=answer)


def test_hashes_tell_prompts_answers_and_their_order_apart() -> None:
    base = hash_problems([problem("a", "b"), problem("c", "d")])
    others = [
        [problem("c", "d"), problem("a", "b")],
        [problem("a", "d"), problem("c", "b")],
        [problem("a", "b")],
        [problem("ab", ""), problem("c", "d")],
    ]
    assert len({base, *(hash_problems(other) for other in others)}) == 5


def test_questions_that_ask_the_same_are_on_one_side_and_count_as_leaks() -> None:
    assert normalize_prompt("What  is\n2 + 2?") == normalize_prompt("what is 2 + 2?") != normalize_prompt("what is 2 * 2?")
    for number in range(200):
        assert split_of(f"What is {number}?") == split_of(f"  WHAT\tis {number}?\n")
    held_out = HeldOut([problem("What is 5?")])
    assert held_out.leaks([problem("what  is 5?"), problem("what is 6?")]) == [problem("what  is 5?")]


def test_a_run_says_what_it_was_trained_and_tested_on(tmp_path: Path) -> None:
    run(small_config(steps=1), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "data.json").read_text())
    assert told["task"]["type"] == "steps"
    assert told["held_out"]["problems"] == 16
    assert told["first_step"]["problems"] == 6
    assert told["files"] == {}


def test_runs_of_several_seeds_may_be_measured_on_the_same_problems(tmp_path: Path) -> None:
    hashes = {
        (seed, chosen): json.loads((run_folder(tmp_path, seed, chosen) / "data.json").read_text())
        for seed, chosen in ((0, None), (1, None), (1, 0), (2, 0))
    }
    held_out = {place: told["held_out"]["sha256"] for place, told in hashes.items()}
    assert held_out[0, None] == held_out[1, 0] == held_out[2, 0] != held_out[1, None]
    assert len({hashes[place]["first_step"]["sha256"] for place in ((0, None), (1, 0), (2, 0))}) == 3
    assert hashes[1, None]["first_step"] == hashes[1, 0]["first_step"]


def run_folder(tmp_path: Path, seed: int, chosen: int | None) -> Path:
    folder = tmp_path / f"{seed}-{chosen}"
    run(small_config(steps=1, seed=seed, evaluation={"seed": chosen}), folder)
    return folder


@pytest.mark.parametrize("chosen", [0, 5, 10_000])
def test_held_out_problems_are_never_trained_on_whatever_their_seed(chosen: int) -> None:
    config = small_config(evaluation={"seed": chosen, "final_problems": 256}, sampling={"prompts": 64})
    task = Steps()
    known = HeldOut(held_out_problems(config, task))
    for seed in range(20):
        assert not known.leaks(first_problems(config.model_copy(update={"seed": seed}), task))


def jsonl_config(tmp_path: Path, **changes: Any) -> Any:
    rows = [{"question": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in range(10) for b in range(10)]
    path = tmp_path / "rows.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"type": "jsonl", "path": str(path), "template": "{question}", "grading": "regex", "pattern": "#([0-9])", "workers": 1}
    small = {"problems": 4, "samples": 2, "final_problems": 4, "final_samples": 2, "every": 0}
    return small_config(task=task, model="steps-shift", evaluation=small, sampling={"max_new_tokens": 24}, **changes)


def test_a_run_whose_file_has_changed_does_not_go_on(tmp_path: Path) -> None:
    run(jsonl_config(tmp_path, steps=3), tmp_path / "run", stop_after=1)
    told = json.loads((tmp_path / "run" / "data.json").read_text())
    assert list(told["files"]) == ["path"]
    rows = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(rows.replace('"answer": "7"', '"answer": "8"'))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"the data of this run has changed since it began \(files.path"):
        run(jsonl_config(tmp_path, steps=3), tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "lock"} == {
        path: content for path, content in before.items() if path.name != "lock"
    }
    (tmp_path / "rows.jsonl").write_text(rows)
    assert not run(jsonl_config(tmp_path, steps=3), tmp_path / "run", resume=True).interrupted


class Leaky(Steps):
    """From a training step on, asks what is held out."""

    after = 0

    def problems(self, count: int, *, split: Any, seed: int) -> list[Problem]:
        if split == "train":
            Leaky.after -= 1
        return Steps.problems(self, count, split="held-out" if Leaky.after < 0 else split, seed=7 if Leaky.after < 0 else seed)


@pytest.mark.parametrize(("after", "error"), [(0, ConfigError), (3, GuardError)])
def test_training_on_what_is_held_out_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, error: type[Exception]
) -> None:
    class AllHeldOut(Leaky):
        def problems(self, count: int, *, split: Any, seed: int) -> list[Problem]:
            found = Leaky.problems(self, count, split=split, seed=seed)
            return [problem("1+1=", "2")] * count if split == "held-out" or Leaky.after < 0 else found

    monkeypatch.setitem(TASKS, "steps", AllHeldOut)
    monkeypatch.setattr(Leaky, "after", after)
    with pytest.raises(error, match="training problems are held out too"):
        run(small_config(), tmp_path / "run")
    assert (tmp_path / "run").exists() == (error is GuardError)


def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    config = jsonl_config(tmp_path)
    task = config.task.model_copy(update={"held_out_path": str(tmp_path / "other" / "rows.jsonl")})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rows.jsonl").write_text('{"question": "1-1=", "answer": "0"}\n')
    config = config.model_copy(update={"task": task})
    made = TASKS["jsonl"](**as_kwargs(config.task))
    before = fingerprint(config, made, [])
    assert before["files"]["path"] != before["files"]["held_out_path"]


def test_a_run_of_an_earlier_version_is_not_gone_on_with(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "run", stop_after=2)
    (tmp_path / "run" / "data.json").unlink()
    with pytest.raises(ConfigError, match="an earlier version wrote it and held out other problems"):
        run(small_config(), tmp_path / "run", resume=True)


def test_an_example_that_is_held_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ShowsHeldOut(Steps):
        def problems(self, count: int, *, split: Any, seed: int) -> list[Problem]:
            shots = seed == derive_seed(0, "shots")
            return Steps.problems(self, count, split="held-out" if shots else split, seed=derive_seed(0, "held-out") if shots else seed)

    monkeypatch.setitem(TASKS, "steps", ShowsHeldOut)
    with pytest.raises(ConfigError, match="training problems are held out too"):
        run(small_config(prompt={"few_shot": 2, "separator": ";"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_with_a_bad_gold_answer_are_not_shown(tmp_path: Path) -> None:
    rows = [{"question": f"{a}+{b}=", "answer": "#7" if a % 2 else "nothing"} for a in range(10) for b in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = jsonl_config(tmp_path, prompt={"few_shot": 4})
    task = config.task.model_copy(update={"gold_pattern": "[7n]", "grading": "exact", "pattern": None})
    config = config.model_copy(update={"task": task})
    trainer = PolicyTrainer(config, source=config.model)
    trainer.task.leave_out([(line, f"{task.path}: bad") for line in range(1, 101) if (line - 1) // 10 % 2 == 0])  # pyright: ignore
    trainer.check_gold(RunDir(tmp_path / "none"))
    shown = trainer.policy.prompting.shots
    assert len(shown) == 5
    assert all(int(shot.prompt[0]) % 2 for shot in shown)

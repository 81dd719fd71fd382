"""`tokencredit evaluate`: what it prints and writes, where its settings come from, and what it refuses before a model is loaded."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine.runs import run as train
from engine.runs import small_config
from fault.command import assert_refused, tokencredit
from tokencredit.commands.eval_settings import Setting, parse_evaluate
from tokencredit.commands.evaluate import _check_gold, _tasks, run
from tokencredit.config.resolve import to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import Verdict
from tokencredit.tasks import GoldReport, Jsonl, Split

QUICK = ("--problems", "6", "--samples", "4")
Say = Callable[..., str]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """What the command prints, run in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def say(*arguments: str) -> str:
        assert run(arguments) == 0
        return capsys.readouterr().out

    return say


def without_clocks(told: dict) -> dict:
    return told | {"results": [{name: value for name, value in one.items() if "seconds" not in name} for one in told["results"]]}


def test_it_prints_numbers_and_a_verdict_and_writes_both_files(said: Say, tmp_path: Path) -> None:
    shown = said("steps-shift", *QUICK, "--json", "found.json", "--responses", "said.jsonl")
    for word in ("6 held-out problems", "greedy", "pass@1", "pass@2", "pass@4", "mixed groups of 4", "95 % interval", "tokens per second"):
        assert word in shown
    assert "\x1b" not in shown
    assert "The task suits this model" in shown
    told = json.loads((tmp_path / "found.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    [found] = told["results"]
    assert (told["model"], told["split"], told["asked"]["task"]["type"], len(rows)) == ("steps-shift", "held-out", "steps", 24)
    assert found["pass_at"]["1"]["value"] == pytest.approx(sum(row["score"] for row in rows) / 24)
    assert found["pass_at"]["1"]["low"] < found["pass_at"]["1"]["value"] < found["pass_at"]["1"]["high"]
    assert f"{100 * found['pass_at']['1']['value']:.1f} %" in shown
    credited = tokencredit("credit", "said.jsonl", "--model", "steps-shift", "--recipe", "grpo", cwd=tmp_path)
    assert "24 responses in 6 groups" in credited.stdout, credited.stderr
    assert_refused(["evaluate", "steps-shift", *QUICK, "--json", "found.json"], "found.json exists", tmp_path)


def test_a_seed_decides_the_numbers(said: Say) -> None:
    one, two, other = (json.loads(said("steps-shift", *QUICK, "--seed", seed, "--json", "-")) for seed in ("3", "3", "4"))
    assert without_clocks(one) == without_clocks(two)
    assert one["results"][0]["entropy"] != other["results"][0]["entropy"]


def test_difficulties_are_compared_and_the_best_is_named(said: Say, tmp_path: Path) -> None:
    shown = said("steps-shift", *QUICK, "--vary", "task.operations=4,9", "--json", "found.json")
    told = json.loads((tmp_path / "found.json").read_text())
    assert [one["setting"] for one in told["results"]] == ["task.operations=4", "task.operations=9"]
    shares = {one["setting"]: one["mixed"]["value"] for one in told["results"]}
    assert told["best"] == max(shares, key=lambda name: shares[name]) == "task.operations=4"
    assert "The most informative setting is task.operations=4" in shown
    alone = json.loads(said("steps-shift", *QUICK, "--task.operations", "9", "--json", "-"))
    assert alone["results"][0]["pass_at"] == told["results"][1]["pass_at"]


def test_a_bad_verdict_comes_with_the_command_that_compares(said: Say) -> None:
    arguments = ["steps-shift", *QUICK, "--task.operations", "12"]
    shown = said(*arguments)
    assert "The task is too hard for this model" in shown
    assert "Try easier problems: task.operations=8 (now 12)" in shown
    assert f"Compare difficulties: tokencredit evaluate {' '.join(arguments)} --vary task.operations=2,4,6,8" in shown


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(small_config(steps=1, seed=7, task={"operations": 3}, sampling={"prompts": 6, "group_size": 4, "temperature": 0.5}), folder)
    return folder


def test_a_run_brings_its_own_task_prompt_and_sampling(trained: Path, said: Say) -> None:
    config = parse_evaluate([str(trained)])[2][0].config
    assert (config.task.operations, config.sampling.temperature, config.sampling.group_size, config.seed) == (3, 0.5, 4, 7)  # pyright: ignore
    changed = parse_evaluate([str(trained), "--task.operations", "2", "--sampling.temperature", "1.0"])[2][0].config
    assert (changed.task.operations, changed.sampling.temperature, changed.sampling.group_size) == (2, 1.0, 4)  # pyright: ignore
    other = parse_evaluate([str(trained), "--task", "cotadd"])[2][0].config
    assert (other.task.type, other.sampling.temperature, other.sampling.max_new_tokens) == ("cotadd", 1.0, 20)
    found = json.loads(said(str(trained), "--problems", "4", "--samples", "2", "--json", "-"))
    assert (found["folder"], found["asked"]["task"]["operations"], found["results"][0]["group_size"]) == ("step-000001", 3, 2)


def test_a_folder_cannot_allow_code_by_itself(trained: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "checkpoints").mkdir(parents=True)
    text = (trained / "config.toml").read_text().replace("trust_remote_code = false", "trust_remote_code = true")
    (foreign / "config.toml").write_text(text)
    assert parse_evaluate([str(trained)])[1].config.trust_remote_code is False
    assert parse_evaluate([str(foreign)])[1].config.trust_remote_code is False
    assert parse_evaluate([str(foreign), "--trust-remote-code"])[1].config.trust_remote_code is True
    head = text[: text.index("[task]")]
    (foreign / "config.toml").write_text(head + '[task]\ntype = "code"\npath = "rows.jsonl"\nallow_code_execution = true\n')
    assert parse_evaluate([str(foreign)])[1].config.task.allow_code_execution is False  # pyright: ignore
    (foreign / "config.toml").write_text(head + '[task]\ntype = "own"\npath = "evil.py:Task"\n')
    with pytest.raises(ConfigError, match=r"custom task, which runs code, 'evil.py:Task'"):
        parse_evaluate([str(foreign)])
    assert parse_evaluate([str(foreign), "--task", "own:mine.py:Task"])[1].config.task.path == "mine.py:Task"  # pyright: ignore


def test_config_files_are_laid_under_the_flags(tmp_path: Path) -> None:
    (tmp_path / "hard.toml").write_text('recipe = "dapo"\n[task]\noperations = 6\n[sampling]\ntemperature = 0.7\n')
    config = parse_evaluate(["steps-shift", str(tmp_path / "hard.toml"), "--sampling.temperature", "0.9"])[2][0].config
    assert (config.task.operations, config.sampling.temperature) == (6, 0.9)  # pyright: ignore


def test_rules_of_training_do_not_bind_an_evaluation(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text('dtype = "bfloat16"\nweights = "bfloat16"\n[sampling]\nmax_new_tokens = 20000\n')
    config = parse_evaluate(["steps-shift", str(tmp_path / "long.toml")])[2][0].config
    assert (config.sampling.max_new_tokens, config.weights) == (20000, "bfloat16")
    assert parse_evaluate([str(trained), str(tmp_path / "long.toml"), "--task", "cotadd"])[2][0].config.task.type == "cotadd"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "evaluate needs a model first"),
        (["steps-shift", "steps-sharpen"], "is not a config file"),
        (["steps-shfit"], "did you mean 'steps-shift'"),
        (["steps-shift", "--samples", "0"], "samples"),
        (["steps-shift", "--task", "stepz"], "did you mean 'steps'"),
        (["steps-shift", "--vary", "task.operations"], "write a field of task, prompt, sampling and its values"),
        (["steps-shift", "--vary", "seed=1,2"], "write a field of task, prompt, sampling and its values"),
        (["steps-shift", "--vary", "task.operations=3,many"], "vary: task.operations is 'many'"),
        (["steps-shift", "--vary", "task.operations=3,99"], "vary: task.operations is 99"),
        (["steps-shift", "--vary", "task.digits=1,2"], "task.digits is not a setting"),
        (["steps-shift", "--sampling.prompts", "4"], "use --problems instead"),
        (["steps-shift", "--json", "no/such/folder.json"], "no/such does not exist"),
        (["steps-shift", "--json", "found.txt"], "must end in .json"),
        (["steps-shift", "--responses", "said.txt"], "must end in .parquet or .jsonl"),
        (["steps-shift", "--task", "jsonl:missing.jsonl"], "missing.jsonl"),
        (["steps-shift", "--optimizer.learning-rate", "1"], "learning-rate"),
    ],
)
def test_mistakes_are_refused_in_words(arguments: Sequence[str], words: str, tmp_path: Path) -> None:
    assert_refused(["evaluate", *arguments], words, tmp_path)


def test_a_model_that_cannot_read_the_task_is_refused(tmp_path: Path) -> None:
    assert_refused(["evaluate", "cotadd", "--task", "steps"], "has no tokens for prompts of task 'steps'", tmp_path)


def test_help_loads_no_model(tmp_path: Path) -> None:
    done = tokencredit("evaluate", "-h", cwd=tmp_path)
    assert done.returncode == 0
    assert "--vary" in done.stdout
    assert "--learning-rate" not in done.stdout


def test_what_a_run_left_out_of_its_own_file_says_nothing_of_another(tmp_path: Path) -> None:
    def config_of(name: str) -> TrainConfig:
        rows = [{"question": f"{number} of {name}?", "answer": "{{{" if number % 2 else str(number)} for number in range(40)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return small_config(task={"type": "jsonl", "path": str(tmp_path / name), "workers": 1})

    own, other = config_of("own.jsonl"), config_of("other.jsonl")
    run_folder = tmp_path / "run"
    (run_folder / "checkpoints").mkdir(parents=True)
    (run_folder / "config.toml").write_text(to_toml(own))
    (run_folder / "gold.json").write_text(json.dumps({"checked": 40, "failed": []}))

    def asked(config: TrainConfig) -> int:
        settings = [Setting("", config)]
        [task] = tasks = _tasks(settings)
        _check_gold(str(run_folder), "train", settings, tasks)
        return len({problem.prompt for problem in task.problems(40, split="train", seed=0)})

    every = asked(own)
    assert 30 < every <= 40
    assert asked(other) <= 20 < every


def file_of_sums(tmp_path: Path, count: int = 40) -> str:
    """Prompts that the shipped base can read."""
    rows = [{"question": f"{number % 10}+{number // 10}=", "answer": str(number % 10 + number // 10)} for number in range(count)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "sums.jsonl")


def test_settings_of_one_task_share_it_and_its_gold_answers_are_graded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graded: list[int] = []
    check = Jsonl.check_gold_of

    def counted(self: Jsonl, split: Split) -> GoldReport:
        graded.append(id(self))
        return check(self, split)

    monkeypatch.setattr(Jsonl, "check_gold_of", counted)
    task = {"type": "jsonl", "path": file_of_sums(tmp_path), "workers": 1}
    configs = [small_config(task=task, sampling={"temperature": heat}) for heat in (0.5, 1.0)]
    other = small_config(task=task | {"grading": "exact"})
    settings = [Setting("", config) for config in (*configs, other)]
    tasks = _tasks(settings)
    _check_gold("steps-shift", "held-out", settings, tasks)
    assert tasks[0] is tasks[1] is not tasks[2]
    assert graded == [id(tasks[0]), id(tasks[2])]


@pytest.mark.parametrize(
    ("split", "few_shot", "sides"),
    [("held-out", 0, {"held-out"}), ("train", 0, {"train"}), ("train", 1, {"train"}), ("held-out", 1, {"held-out", "train"})],
)
def test_gold_answers_are_graded_only_of_rows_that_may_be_asked_or_shown(
    split: Split, few_shot: int, sides: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded: list[str] = []

    def grade(self: GraderPool, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        graded.extend(gold for gold, _ in pairs)
        return [Verdict(float(gold != "3")) for gold, _ in pairs]

    monkeypatch.setattr(GraderPool, "grade", grade)
    for side, first in (("train", 0), ("held-out", 100)):
        rows = [{"question": f"{number}?", "answer": str(number)} for number in range(first, first + 9)]
        (tmp_path / f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"path": str(tmp_path / "train.jsonl"), "held_out_path": str(tmp_path / "held-out.jsonl")}
    settings = [Setting("", small_config(task={"type": "jsonl", **files}, prompt={"few_shot": few_shot}))]
    [task] = tasks = _tasks(settings)
    _check_gold("steps-shift", split, settings, tasks)
    assert {"held-out" if int(gold) >= 100 else "train" for gold in graded} == sides
    assert len(graded) == 9 * len(sides)
    assert len({problem.answer for problem in task.problems(9, split="train", seed=0)}) == 9 - ("train" in sides)


def test_counting_and_parsing_need_no_model_code() -> None:
    code = "import sys, tokencredit.commands.evaluate, tokencredit.commands.progress; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

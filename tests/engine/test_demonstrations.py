"""A task that can show a right response shows one that it grades right itself."""

import json
from pathlib import Path

import pytest

from tokencredit.config.base import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.config.task import CodeTask, JsonlTask, TaskFields
from tokencredit.config.train import CHOICES
from tokencredit.tasks import TASKS, Code, CotAdd, HasDemonstrations, Jsonl, Steps

LADDERS = {name: kind.ladder for name, kind in CHOICES["task"].items() if issubclass(kind, TaskFields) and kind.ladder is not None}


def test_the_ladders_are_the_ones_meant() -> None:
    assert {
        name: LADDERS.get(name) for name in ("steps", "cotadd", "arithmetic", "countdown", "reasoning-gym", "jsonl", "code", "own")
    } == {
        "steps": ("operations", (2, 4, 6, 8)),
        "cotadd": ("digits", (1, 2, 3, 4)),
        "arithmetic": ("digits", (1, 2, 3, 4)),
        "countdown": ("numbers", (2, 3, 4)),
        "reasoning-gym": None,
        "jsonl": None,
        "code": None,
        "own": None,
    }


@pytest.mark.parametrize("name", ["steps", "cotadd", "arithmetic", "countdown"])
def test_every_rung_can_be_trained_on_and_shown(name: str) -> None:
    field, values = LADDERS[name] or ("", ())
    for value in values:
        task = TASKS[name](**as_kwargs(resolve([{"task": {"type": name, field: value}}]).task))
        assert isinstance(task, HasDemonstrations)
        for problem in task.problems(20, split="train", seed=value):
            assert task.grade(problem, task.demonstrate(problem, seed=1)) == 1.0


def test_demonstrations_of_steps_follow_from_the_seed_and_differ_in_format_alone() -> None:
    task = Steps()
    problem = task.problems(1, split="train", seed=0)[0]
    shown = [task.demonstrate(problem, seed=seed) for seed in range(30)]
    assert shown == [task.demonstrate(problem, seed=seed) for seed in range(30)]
    assert {text[:2] for text in shown} == {"a:", "b:"}
    assert all(all(task.step_truth(problem, text)) for text in shown)


def test_cotadd_is_shown_with_its_scratchpad() -> None:
    problem = CotAdd().problems(1, split="train", seed=0)[0]
    assert CotAdd().demonstrate(problem, seed=0) == f"r{problem.answer[::-1]};{problem.answer}"


def test_a_file_s_own_answers_are_shown_as_they_are_written(tmp_path: Path) -> None:
    rows = [{"question": f"{number}+1?", "answer": f"One more.\n#### {number + 1}"} for number in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Jsonl(JsonlTask(path=str(path), gold_pattern="#### *(.+)"))
    for split in ("train", "held-out"):
        for problem in task.problems(3, split=split, seed=0):
            shown = task.demonstrate(problem, seed=0)
            assert shown == f"One more.\n#### {problem.answer}"
            assert task.grade(problem, shown) == 1.0


def test_a_reference_program_is_shown_in_a_block(tmp_path: Path) -> None:
    rows = [
        {"text": f"Add {number}.", "code": f"def add(x):\n    return x + {number}", "test_list": [f"assert add(1) == {number + 1}"]}
        for number in range(20)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Code(CodeTask(path=str(path), allow_code_execution=True, isolation="plain"))
    problem = task.problems(1, split="train", seed=0)[0]
    shown = task.demonstrate(problem, seed=0)
    assert shown.startswith("```python\ndef add(x):\n    return x + ")
    assert task.grade(problem, shown) == 1.0

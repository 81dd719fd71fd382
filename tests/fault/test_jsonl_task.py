"""A file of one's own questions: read right or refused by name, split without leaks, and checked against itself."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from fault.command import SMALL, assert_refused
from tokencredit.config.base import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.config.task import JsonlTask
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.tasks import TASKS, GoldChecking, Jsonl, Problem, Steps, verdicts
from tokencredit.tasks.split import split_of
from tokencredit.trainer.evaluate import evaluate

ROW = {"question": "1+1?", "answer": "2"}
GOOD = json.dumps(ROW).encode()


def write(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"{number}+1?", "answer": number + 1} for number in range(start, start + count)]


def row(**cells: Any) -> bytes:
    return json.dumps(ROW | cells).encode()


FILE_MISTAKES: dict[str, tuple[bytes, str]] = {
    "nothing in it": (b"", "is empty; give one JSON object per line"),
    "blank lines": (b"\n \r\n\n", "is empty"),
    "not JSON": (b"question,answer\n1,2\n", "line 1: the line is not JSON"),
    "a broken line": (GOOD + b"\n\n{\n", "line 3: the line is not JSON"),
    "one object over lines": (json.dumps([ROW], indent=1).encode(), "line 1: the line is not JSON"),
    "a list": (GOOD + b"\n[1, 2]\n", "line 2: ['1', '2'] is not an object"),
    "two objects on a line": (GOOD + GOOD, "line 1: the line is not JSON (Extra data"),
    "a line cut off": (GOOD + b"\n" + GOOD[:-4], "line 2: the line is not JSON"),
    "NUL bytes": (GOOD + b"\n" + b"\x00" * 20 + b"\n", "line 2: the line is not JSON"),
    "NUL in a text": (b'{"question": "a\x00b", "answer": "1"}', "line 1: the line is not JSON (Invalid control character"),
    "not UTF-8": (GOOD + b'\n{"question": "caf\xe9", "answer": "1"}', "line 2: byte 18, 0xe9, is not UTF-8"),
    "UTF-16": (json.dumps(ROW).encode("utf-16"), "line 1: byte 1, 0xff, is not UTF-8"),
    "compressed": (b"\x1f\x8b\x08\x00" + GOOD, "is compressed with gzip; decompress it first"),
    "a list of objects": (
        json.dumps([ROW, ROW]).encode(),
        "line 1: the line is one JSON list of objects; write each object on its own line",
    ),
    "nested too deeply": (GOOD + b"\n" + b"[" * 100_000, "line 2: the JSON is nested too deeply; give one flat object per line"),
    "nested objects": (b'{"question": "a", "answer": ' + b'{"a":' * 100_000, "line 1: the JSON is nested too deeply"),
    "no question": (
        GOOD + b'\n{"prompt": "a", "answer": "1"}',
        "line 2: no column 'question'; the line has answer, prompt. Set task.question",
    ),
    "no answer": (b'{"question": "a"}', "line 1: no column 'answer'; the line has question. Set task.answer"),
    "no columns": (b"{}", "no column 'question'; the line has nothing"),
    "question that is a number": (row(question=12), "line 1: question is the number '12'; give text"),
    "question that is null": (row(question=None), "line 1: question is None; give text"),
    "question that is a list": (row(question=["a"]), "line 1: question is ['a']; give text"),
    "empty question": (GOOD + b"\n" + row(question=" \n"), "line 2: question is empty"),
    "empty answer": (row(answer=""), "line 1: answer is empty"),
    "answer that is true": (row(answer=True), "line 1: answer is True; give text or a finite number"),
    "answer that is an object": (row(answer={"value": 1}), "line 1: answer is {'value': '1'}; give text or a finite number"),
    "NaN": (row(answer=math.nan), "line 1: answer is nan; give text or a finite number"),
    "infinity": (row(answer=-math.inf), "line 1: answer is -inf; give text or a finite number"),
    "half a character": (row(question="x \ud83d"), "line 1: question is 'x \\ud83d', which has an unpaired surrogate character"),
    "half a character in an answer": (row(answer="\udc00"), "line 1: answer is '\\udc00', which has an unpaired surrogate"),
    "two answers to one question": (
        GOOD + b"\n" + row(answer="3"),
        "line 2: the same question as on line 1, but the answer is '3' and not '2'",
    ),
}


@pytest.mark.parametrize("mistake", FILE_MISTAKES)
def test_a_bad_line_is_named(tmp_path: Path, mistake: str) -> None:
    content, words = FILE_MISTAKES[mistake]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    for files in ({"path": str(path)}, {"path": write(tmp_path / "other.jsonl", sums(3)), "held_out_path": str(path)}):
        with pytest.raises(ConfigError) as told:
            Jsonl(JsonlTask(**files))
        assert words in str(told.value)
        assert str(path) in str(told.value)
        assert len(str(told.value)) < 600


READ_RIGHT: dict[str, tuple[bytes, tuple[str, str]]] = {
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, ("1+1?", "2")),
    "Windows line ends": (GOOD + b"\r\n", ("1+1?", "2")),
    "no line end at the end": (GOOD, ("1+1?", "2")),
    "blank lines between": (b"\n\r\n" + GOOD + b"\n\n", ("1+1?", "2")),
    "the same row twice": (GOOD + b"\n" + GOOD, ("1+1?", "2")),
    "other line ends in a text": ('{"question": "a\u2028b\u0085c", "answer": "1"}'.encode(), ("a\u2028b\u0085c", "1")),
    "an escaped NUL": (b'{"question": "a\\u0000b", "answer": "1"}', ("a\x00b", "1")),
    "a surrogate pair": (b'{"question": "\\ud83d\\ude00", "answer": "1"}', ("😀", "1")),
    "a whole number": (row(answer=-17), ("1+1?", "-17")),
    "a number as written": (b'{"question": "a", "answer": 0.50}', ("a", "0.50")),
    "a number of 10,000 digits": (b'{"question": "a", "answer": ' + b"7" * 10_000 + b"}", ("a", "7" * 10_000)),
    "100,000 characters": (row(question="x" * 100_000, answer="y" * 100_000), ("x" * 100_000, "y" * 100_000)),
    "other columns, whatever they hold": (row(score=math.nan, more=[{"a": None}]), ("1+1?", "2")),
    "space around an answer": (row(answer=" 2\n"), ("1+1?", "2")),
    "braces in a question": (row(question="{a} {question} %s \\1"), ("{a} {question} %s \\1", "2")),
}


@pytest.mark.parametrize("case", READ_RIGHT)
def test_odd_but_good_lines_are_read_right(tmp_path: Path, case: str) -> None:
    content, (question, gold) = READ_RIGHT[case]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    task = Jsonl(JsonlTask(path=str(path), held_out_path=write(tmp_path / "held-out.jsonl", sums(2, 50)), template="{question}"))
    assert task.problems(1, split="train", seed=0) == [Problem(prompt=question, answer=gold)]


OPTION_MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no path": ({"path": None}, "task.path is not set"),
    "no such file": ({"path": "none.jsonl"}, "task.path 'none.jsonl' is not a file"),
    "a folder": ({"path": "."}, "task.path '.' is not a file"),
    "NUL in a path": ({"path": "a\x00b"}, "is not a file"),
    "no such held-out file": ({"held_out_path": "none.jsonl"}, "task.held_out_path 'none.jsonl' is not a file"),
    "a template without the question": ({"template": "{problem}"}, "task.template is '{problem}'; it must hold {question}"),
    "a pattern that is none": ({"gold_pattern": "("}, "task.gold_pattern is '(', which is not a regular expression"),
    "a pattern of two groups": ({"gold_pattern": "(a)(b)"}, "task.gold_pattern is '(a)(b)' with 2 groups"),
    "a pattern that finds nothing": (
        {"gold_pattern": "####(.+)"},
        "line 1: answer is '1', where task.gold_pattern '####(.+)' finds no gold",
    ),
    "regex without a pattern": ({"grading": "regex"}, "task.pattern is not set but task.grading 'regex' needs it"),
    "regex with a bad pattern": ({"grading": "regex", "pattern": "["}, "task.pattern is '[', which is not a regular expression"),
    "unknown grading": ({"grading": "maths"}, "task.grading is 'maths': Input should be 'math', 'exact' or 'regex'"),
}


@pytest.mark.parametrize("mistake", OPTION_MISTAKES)
def test_a_bad_option_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    changes, words = OPTION_MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as told:
        TASKS["jsonl"](**{"path": write(tmp_path / "rows.jsonl", sums(30)), **changes})
    assert words in str(told.value)


def test_the_command_refuses_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(GOOD + b"\n[]")
    task = ["train", "--task.type", "jsonl"]
    for flags, words in (
        ([], "task.path is not set"),
        (["--task.path", "bad.jsonl"], "bad.jsonl, line 2: [] is not an object"),
    ):
        assert_refused([*task, *flags, *SMALL], words, tmp_path)


def test_the_configuration_makes_the_task(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", sums(30))
    config = resolve([{"task": {"type": "jsonl", "path": path, "grading": "regex", "pattern": r"= (\d+)", "deadline": 9.0}}])
    task = TASKS["jsonl"](**as_kwargs(config.task))
    assert isinstance(task, GoldChecking)
    asked = [(Problem(prompt="", answer="7"), said) for said in ("3+4 = 7", "3+4 = 8", "7")]
    assert [verdict.score for verdict in verdicts(task, asked)] == [1.0, 0.0, 0.0]
    assert task.grade(*asked[0]) == 1.0
    assert task.token_class(*asked[0]) == ["response"] * 7
    assert config.sampling.max_new_tokens == 512
    with pytest.raises(ConfigError, match="pattern is 'x' but is read only when grading is 'regex'; it is 'math'"):
        resolve([{"task": {"type": "jsonl", "path": path, "pattern": "x"}}])


def leaking_sides(rows: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """A wrong twin: every tenth row by its place, although one question stands in two places."""
    return {r["question"] for i, r in enumerate(rows) if i % 10}, {r["question"] for i, r in enumerate(rows) if i % 10 == 0}


def test_a_question_is_on_one_side_whatever_the_file_s_order(tmp_path: Path) -> None:
    rows = sums(200)
    doubled = [*rows, *rows[5:50]]
    sides = []
    for name, order in (("one", doubled), ("two", doubled[::-1])):
        task = Jsonl(JsonlTask(path=write(tmp_path / name, order)))
        held_out = {problem.prompt for problem in task.problems(count_held_out(rows), split="held-out", seed=1)}
        trained = {problem.prompt for problem in task.problems(2000, split="train", seed=1)}
        assert not trained & held_out
        assert len(trained | held_out) == 200
        sides.append((trained, held_out))
    assert sides[0] == sides[1]
    trained, held_out = leaking_sides(doubled)
    assert trained & held_out


def count_held_out(rows: list[dict[str, Any]]) -> int:
    return sum(split_of(f"{row['question']}\n") == "held-out" for row in rows)


def test_problems_are_a_pure_function_that_goes_through_all_rows(tmp_path: Path) -> None:
    task = Jsonl(JsonlTask(path=write(tmp_path / "a", sums(20)), held_out_path=write(tmp_path / "b", sums(10, 100))))
    other = Jsonl(JsonlTask(path=write(tmp_path / "c", sums(20)), held_out_path=write(tmp_path / "d", sums(10, 100))))
    drawn = task.problems(70, split="train", seed=3)
    task.problems(5, split="train", seed=4)
    assert task.problems(70, split="train", seed=3) == drawn == other.problems(70, split="train", seed=3)
    passes = [drawn[start : start + 20] for start in (0, 20, 40)]
    assert all(len({problem.prompt for problem in one}) == 20 for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert len({problem.prompt for problem in drawn[60:]}) == 10
    assert task.problems(20, split="train", seed=4) != drawn[:20]
    assert len({problem.prompt for problem in task.problems(10, split="held-out", seed=0)}) == 10
    assert {problem.answer for problem in task.problems(10, split="held-out", seed=0)} == {str(number) for number in range(101, 111)}


def test_too_few_rows_say_how_many_there_are(tmp_path: Path) -> None:
    rows = write(tmp_path / "a", sums(20))
    task = Jsonl(JsonlTask(path=rows, held_out_path=write(tmp_path / "b", sums(10, 100))))
    with pytest.raises(ConfigError, match=r"b has 10 usable held-out rows, but the run needs 11; lower evaluation.final_problems"):
        task.problems(11, split="held-out", seed=0)
    only_held_out = [row for row in sums(100) if split_of(f"{row['question']}\n") == "held-out"]
    with pytest.raises(ConfigError, match="has no rows to train on"):
        Jsonl(JsonlTask(path=write(tmp_path / "c", only_held_out))).problems(1, split="train", seed=0)


def test_a_held_out_question_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"2 questions of task.held_out_path .*b are also in task.path .*a, for example line 1, which is line 19 there"
    ):
        Jsonl(JsonlTask(path=write(tmp_path / "a", sums(20)), held_out_path=write(tmp_path / "b", sums(10, 18))))


ENDLESS = "(" * 200 + "42" + ")" * 200

GOLD_ROWS = [
    {"question": "a", "answer": "work #### 1,000"},
    {"question": "b", "answer": "work #### {{{{"},
    {"question": "c", "answer": f"work #### {ENDLESS}"},
    {"question": "d", "answer": r"work #### \frac{1}{2}"},
]


def test_gold_answers_that_fail_are_told_and_not_asked(tmp_path: Path) -> None:
    task = Jsonl(
        JsonlTask(
            path=write(tmp_path / "a", GOLD_ROWS),
            held_out_path=write(tmp_path / "b", [{"question": "e", "answer": "#### 5"}, {"question": "f", "answer": "#### }{"}]),
            gold_pattern="#### *(.+)",
            deadline=2.0,
        )
    )
    assert {problem.answer for problem in task.problems(4, split="train", seed=0)} == {"1,000", "{{{{", ENDLESS, r"\frac{1}{2}"}
    report = task.check_gold()
    assert report.checked == 6
    assert [line for line, _ in report.failed] == [2, 3, 2]
    assert [reason.split(": ", 1) for _, reason in report.failed] == [
        [str(tmp_path / "a"), "the gold answer '{{{{' cannot be read as mathematics"],
        [str(tmp_path / "a"), "no verdict within 2 s"],
        [str(tmp_path / "b"), "the gold answer '}{' cannot be read as mathematics"],
    ]
    assert {problem.answer for problem in task.problems(4, split="train", seed=0)} == {"1,000", r"\frac{1}{2}"}
    assert task.problems(1, split="held-out", seed=0) == [Problem(prompt="e\n", answer="5")]
    with pytest.raises(ConfigError, match="has 1 usable held-out rows"):
        task.problems(2, split="held-out", seed=0)
    assert task.check_gold() == (3, ())


def test_a_file_whose_gold_answers_all_fail_is_refused(tmp_path: Path) -> None:
    rows = [{"question": str(number), "answer": "so {{{ is it"} for number in range(3)]
    task = Jsonl(JsonlTask(path=write(tmp_path / "a", rows)))
    with pytest.raises(
        ConfigError, match=r"none of the 3 gold answers is graded right, line \d of .*a: .*cannot be read .*; see task.grading"
    ):
        task.check_gold()


def test_gold_answers_of_a_pattern_are_checked_as_far_as_one_can(tmp_path: Path) -> None:
    """The first two can be checked by the file's own answer; in the third the pattern finds nothing, so nothing can be said."""
    rows = [
        {"question": "a", "answer": "so #### 4"},
        {"question": "b", "answer": "so #### 5 or #### 6\nFinal: 5"},
        {"question": "c", "answer": "Final: 7"},
    ]
    held_out = write(tmp_path / "b", sums(1))
    task = Jsonl(
        JsonlTask(path=write(tmp_path / "a", rows), held_out_path=held_out, gold_pattern=r"(\d)\Z", grading="regex", pattern="#### (.)")
    )
    report = task.check_gold()
    assert report.checked == 2
    assert report.failed == ((2, f"{tmp_path / 'a'}: the gold answer '5' is graded 0 against itself"),)
    assert {problem.answer for problem in task.problems(2, split="train", seed=0)} == {"4", "7"}
    exact = Jsonl(JsonlTask(path=write(tmp_path / "c", rows), grading="exact"))
    assert exact.check_gold() == (3, ())


def test_a_built_in_task_written_to_a_file_is_graded_as_the_task_grades_it(tmp_path: Path) -> None:
    """Real responses of the shipped base, right and wrong ones, through the evaluation and the child processes."""
    steps = Steps()
    problems = [problem for split in ("train", "held-out") for problem in steps.problems(100, split=split, seed=1)]
    rows = ({"question": problem.prompt, "answer": problem.answer} for problem in problems)
    task = Jsonl(JsonlTask(path=write(tmp_path / "steps.jsonl", rows), template="{question}", grading="regex", pattern=r"#(\d)\Z"))
    asked = task.problems(40, split="held-out", seed=0)
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")
    ours, theirs = (evaluate(policy, one, asked, SamplingParams(group_size=2, max_new_tokens=48, seed=0)) for one in (task, steps))
    assert ours == theirs
    assert 0.0 < ours.sampled < 1.0

"""A task in one word, on the command line and in a file; tables as flags."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencredit.cli import main
from tokencredit.commands.flags import parse_train
from tokencredit.config.resolve import resolve, to_toml
from tokencredit.config.syntax import read_table, task_fields, with_task_flags, write_table
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.models import anchored

WORDS = {
    "steps": {"type": "steps"},
    "arithmetic": {"type": "arithmetic"},
    "countdown": {"type": "countdown"},
    "reasoning-gym:letter_counting": {"type": "reasoning-gym", "dataset": "letter_counting"},
    "jsonl:rows.jsonl": {"type": "jsonl", "path": "rows.jsonl"},
    "jsonl:C:/a=b.jsonl": {"type": "jsonl", "path": "C:/a=b.jsonl"},
    "code:rows.jsonl": {"type": "code", "path": "rows.jsonl"},
    "own:my_task.py:Capitals": {"type": "own", "path": "my_task.py:Capitals"},
    "own:package.module:Capitals": {"type": "own", "path": "package.module:Capitals"},
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_says_the_same_everywhere(word: str, tmp_path: Path) -> None:
    spelled_out = resolve([{"task": WORDS[word]}])
    (tmp_path / "run.toml").write_text(f'task = "{word}"\n')
    assert task_fields(word) == WORDS[word]
    assert parse_train(["--task", word]).config == spelled_out
    assert parse_train([f"--task={word}"]).config == spelled_out
    assert parse_train([str(tmp_path / "run.toml")]).config == spelled_out
    assert resolve([tomllib.loads(to_toml(spelled_out))]) == spelled_out


def test_dials_may_stand_on_either_side() -> None:
    assert parse_train(["--task", "arithmetic", "--task.digits", "3"]).config.task.model_dump()["digits"] == 3
    assert parse_train(["--task.digits", "3", "--seed", "1", "--task", "arithmetic"]).config.task.model_dump()["digits"] == 3


def test_a_word_lies_over_a_file_s_table(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[task]\ntype = "countdown"\nnumbers = 4\n')
    assert parse_train([str(tmp_path / "run.toml"), "--task", "countdown"]).config.task.model_dump()["numbers"] == 4
    assert parse_train([str(tmp_path / "run.toml"), "--task", "arithmetic"]).config.task.model_dump()["type"] == "arithmetic"


def test_other_flags_are_left_alone() -> None:
    flags = ["--task.type", "steps", "--tasks", "x", "--seed", "3", "--task.operations=2", "task"]
    assert with_task_flags(flags) == flags


MISTAKES = {
    "nosuch": "task 'nosuch' is not known; there is steps",
    "countdwn": "did you mean 'countdown'?",
    "Arithmetic": "did you mean 'arithmetic'?",
    "countdown:3": "task 'countdown:3' cannot be read: nothing follows 'countdown'",
    "jsonl:": "write jsonl:PATH",
    "reasoning-gym:": "write reasoning-gym:DATASET",
    "x" * 500: "is not known",
}


@pytest.mark.parametrize("word", MISTAKES)
def test_a_wrong_word_is_told(word: str) -> None:
    for ask in (lambda: parse_train(["--task", word]), lambda: resolve([{"task": word}])):
        with pytest.raises(ConfigError) as told:
            ask()
        assert MISTAKES[word] in str(told.value)
        assert len(str(told.value)) < 300


@pytest.mark.parametrize("flags", [["--task"], ["--task", "--seed", "3"], ["--task="], ["--task", ""]])
def test_a_missing_word_is_told(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match="--task needs the name of a task; there is steps"):
        parse_train(flags)


def test_the_command_itself_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["tokencredit", "train", "--task", "countdwn"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (2, "tokencredit: task 'countdwn' is not known; did you mean 'countdown'?\n")


GYM = ["--task", "reasoning-gym:letter_counting"]


def test_a_table_is_written_name_value() -> None:
    given_values = ["min_words=2", "share=0.5", "on=true", "list=[1, 2]", 'text="2"', "word=two", "eq=a=b", "nothing=null", "empty="]
    task = parse_train([*GYM, "--task.parameters", *given_values, "--seed", "3"]).config.task.model_dump()
    expected: dict[str, Any] = {"min_words": 2, "share": 0.5, "on": True, "list": [1, 2], "text": "2", "word": "two"}
    assert task["parameters"] == expected | {"eq": "a=b", "nothing": "none", "empty": ""}


def test_a_table_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('task.type = "reasoning-gym"\n[task.mixture]\nchain_sum = 1\ngcd = 2.5\n[task.parameters.chain_sum]\nmin_terms = 2\n')
    task = parse_train([str(path)]).config.task.model_dump()
    assert task["mixture"] == {"chain_sum": 1, "gcd": 2.5}
    assert task["parameters"] == {"chain_sum": {"min_terms": 2}}
    assert parse_train([str(path), "--task.parameters", 'gcd={"max_value": 9}']).config.task.model_dump()["parameters"] == {
        "gcd": {"max_value": 9}
    }


@pytest.mark.parametrize("word", ["min_words", "=2"])
def test_a_word_without_a_name_or_a_value_is_told(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_train([*GYM, "--task.parameters", word])
    assert f"'{word}' is not written name=value" in " ".join(capsys.readouterr().err.split())


def test_a_value_that_is_not_plain_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('task.type = "own"\n[task.options.nested]\nday = 2026-11-16\n')
    with pytest.raises(ConfigError, match=r"^task\.options holds a date; give numbers, text, true or false, lists and tables$"):
        parse_train([str(path)])


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: "=" not in name), VALUES, max_size=4))
def test_a_table_in_words_is_read_back(table: dict[str, Any]) -> None:
    assert read_table(write_table(table)) == table


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "nan", "9" * 5000, "[" * 100_000, "{", '{"a":}'])
def test_what_is_no_json_is_text(text: str) -> None:
    assert read_table([f"x={text}"]) == {"x": text}


@pytest.mark.parametrize(
    ("word", "stored"),
    [
        ("own:my_task.py:Capitals", "{here}/my_task.py:Capitals"),
        ("own:sub/my_task.py:Capitals", "{here}/sub/my_task.py:Capitals"),
        ("own:package.module:Capitals", "package.module:Capitals"),
        ("jsonl:rows.jsonl", "{here}/rows.jsonl"),
    ],
)
def test_files_hold_from_anywhere(word: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config: TrainConfig = anchored(resolve([{"task": word, "model": "steps-shift"}]))
    assert config.task.model_dump()["path"] == stored.format(here=tmp_path)
    assert anchored(config) == config

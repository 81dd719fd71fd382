"""Converters, known answers on files with the exact columns of TRL 1.16 and verl 0.9; real ones are written in tests/crosscheck."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tiny import tiny_policy
from tokencredit.cli import run
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.rollout_io.load import load
from tokencredit.rollout_io.read import read_rollouts
from tokencredit.tasks.tokenizer import character_tokenizer

HOSTILE = "é\r\n\u2028 🙂 \"'\\ <|im_end|>"
TRL: dict[str, list[Any]] = {
    "step": [3, 3, 3, 3],
    "prompt": ["1+1=", "1+1=", HOSTILE, HOSTILE],
    "completion": ["2", "3", "", "x\ny"],
    "accuracy": [1.0, 0.0, float("nan"), 0.5],
    "advantage": [0.7, -0.7, 0.0, 0.25],
}
VERL: list[dict[str, Any]] = [
    {"input": "user\n1+1=", "output": "2", "gts": "2", "score": 1.0, "step": 7, "acc": True},
    {"input": "user\n1+1=", "output": HOSTILE, "gts": ["2", "zwei"], "score": 0.0, "step": 7, "acc": False},
    {"input": "user\n2+2=", "output": "4", "gts": None, "score": float("nan"), "step": 7, "acc": True},
]


def trl_file(path: Path, **columns: Any) -> Path:
    table = {name: values for name, values in {**TRL, **columns}.items() if values is not None}
    advantage = table.pop("advantage")
    parquet.write_table(pyarrow.table({**table, "advantage": advantage}), path)
    return path


def verl_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def converted(out: Path, *arguments: str) -> list[dict[str, Any]]:
    assert run(["convert", *arguments, "--out", str(out)]) == 0
    return load(out, step="all").rows


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_trl(tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = converted(tmp_path / f"out{suffix}", str(trl_file(tmp_path / "completions_00003.parquet", note=["a", "b", "c", "d"])))
    assert rows == [
        {"step": 3, "prompt": prompt, "response": response, "score": score, "advantage": advantage}
        for prompt, response, score, advantage in zip(
            TRL["prompt"], TRL["completion"], [1.0, 0.0, None, 0.5], TRL["advantage"], strict=True
        )
    ]
    said = capsys.readouterr().out
    assert "4 responses in 2 groups, 1 not graded" in said
    assert "\nscore is accuracy\n" in said


def test_trl_s_rewards_are_chosen_or_added(tmp_path: Path) -> None:
    path = str(trl_file(tmp_path / "c.parquet", style=[0.1, None, None, 0.5]))

    def scores(*flags: str) -> list[float | None]:
        return [row["score"] for row in converted(tmp_path / "out.jsonl", path, "--force", *flags)]

    assert scores("--score", "style") == [0.1, None, None, 0.5]
    assert scores("--score", "sum") == [1.1, 0.0, None, 1.0]
    words = "has 2 columns of numbers that may be the score: accuracy, style; choose one with `tokencredit convert --score COLUMN`"
    with pytest.raises(ConfigError, match=words):
        scores()
    with pytest.raises(ConfigError, match=r"score column 'stlye' is not in .*; columns of numbers are: accuracy, style"):
        scores("--score", "stlye")
    with pytest.raises(ConfigError, match="has no column of rewards; it holds step, prompt, completion, advantage"):
        converted(tmp_path / "new.jsonl", str(trl_file(tmp_path / "c.parquet", accuracy=None)))
    assert not (tmp_path / "new.jsonl").exists()


def messages(*contents: str, role: str = "assistant") -> list[list[dict[str, Any]]]:
    return [[{"role": role, "content": content}] for content in contents]


def test_trl_s_chat_messages_are_joined_by_the_template(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("abc")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[to]{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    chat = {"prompt": messages("a", "a", "b", "b", role="user"), "completion": messages("2", "3", "", HOSTILE)}
    path = trl_file(tmp_path / "c.parquet", **chat)
    rows = converted(tmp_path / "out.parquet", str(path), "--model", str(tmp_path / "model"))
    assert [row["prompt"] for row in rows] == ["[user]a[to]", "[user]a[to]", "[user]b[to]", "[user]b[to]"]
    assert [row["response"] for row in rows] == ["2", "3", "", HOSTILE]
    with pytest.raises(ConfigError, match="row 1: prompt is a list of chat messages, which only the model's chat template can join"):
        converted(tmp_path / "new.parquet", str(path))
    with pytest.raises(ConfigError, match="has no chat template"):
        converted(tmp_path / "new.parquet", str(path), "--model", "steps-shift")
    tool = [[{"role": "assistant", "content": "2"}, {"role": "tool", "content": "4"}], *chat["completion"][1:]]
    with pytest.raises(ConfigError, match=r"row 1: completion is .*; only one assistant message of plain text"):
        converted(tmp_path / "new.parquet", str(trl_file(path, **{**chat, "completion": tool})), "--model", str(tmp_path / "model"))


def test_verl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = converted(tmp_path / "out.parquet", str(verl_file(tmp_path / "7.jsonl", VERL)))
    assert rows == [
        {"step": 7, "prompt": row["input"], "response": row["output"], "score": score, "answer": answer}
        for row, score, answer in zip(VERL, [1.0, 0.0, None], ["2", '["2", "zwei"]', None], strict=True)
    ]
    assert "3 responses in 2 groups, 1 not graded" in capsys.readouterr().out
    assert [row["score"] for row in converted(tmp_path / "acc.jsonl", str(tmp_path / "7.jsonl"), "--score", "acc")] == [1.0, 0.0, 1.0]


def test_several_files_become_one(tmp_path: Path) -> None:
    eighth = verl_file(tmp_path / "8.jsonl", [{**row, "step": 8} for row in VERL[:1]])
    out = tmp_path / "out.parquet"
    rows = converted(out, str(verl_file(tmp_path / "7.jsonl", VERL)), str(eighth), str(trl_file(tmp_path / "c.parquet")))
    assert [row["step"] for row in rows] == [7, 7, 7, 8, 3, 3, 3, 3]
    assert [row["advantage"] for row in rows[:4]] == [None] * 4
    with pytest.raises(ConfigError, match="holds 3 steps; choose one with --step: 3, 7, 8"):
        read_rollouts(out)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


def test_both_are_read_without_converting(tmp_path: Path, policy: Policy) -> None:
    path = trl_file(tmp_path / "c.parquet", prompt=["1+1="] * 4, completion=["2", "3", "", "4"])
    stored = read_rollouts(path, policy)
    end = policy.end_tokens[0]
    assert [ids[-1] for ids in ([*policy.encode(text), end] for text in ("2", "3", "", "4"))] == [end] * 4
    assert [row[inside].tolist() for row, inside in zip(stored.rollouts.tokens, stored.rollouts.mask, strict=True)] == [
        [*policy.encode(text), end] for text in ("2", "3", "", "4")
    ]
    assert stored.score.tolist()[:2] == [1.0, 0.0]
    assert math.isnan(stored.score.tolist()[2])
    assert stored.advantage is not None
    assert stored.advantage.tolist() == TRL["advantage"]
    assert stored.rollouts.group.tolist() == [0, 0, 0, 0]
    assert "every response is taken as finished" in stored.notes[0]
    rows = [{**row, "input": f"{digit}+1=", "output": "2"} for row, digit in zip(VERL, (1, 1, 2), strict=True)]
    stored = read_rollouts(verl_file(tmp_path / "7.jsonl", rows), policy)
    assert stored.rollouts.group.tolist() == [0, 0, 1]
    assert (stored.step, stored.answers[:2], stored.advantage) == (7, ("2", '["2", "zwei"]'), None)
    again = tmp_path / "again.parquet"
    converted(again, str(tmp_path / "7.jsonl"))
    assert read_rollouts(again, policy).rollouts.tokens.tolist() == stored.rollouts.tokens.tolist()


def test_verl_s_text_must_be_text(tmp_path: Path) -> None:
    for changes, words in (({"output": None}, "row 2: output is missing"), ({"input": [1]}, r"row 2: input is \[1\]; give text")):
        with pytest.raises(ConfigError, match=words):
            converted(tmp_path / "out.parquet", str(verl_file(tmp_path / "7.jsonl", [VERL[0], {**VERL[1], **changes}])))

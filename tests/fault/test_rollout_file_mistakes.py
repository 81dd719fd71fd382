"""Every mistake in a rollout file: an error that names file, row, column and what would be right."""

import json
from pathlib import Path
from typing import Any

import pytest

from fault.command import assert_refused
from tiny import tiny_policy
from tokencredit.errors import ConfigError
from tokencredit.rollout_io.read import read_rollouts
from tokencredit.rollout_io.write import check_out, write_rows

GOOD: dict[str, Any] = {"prompt_ids": [3, 4], "response_ids": [5, 6, 7], "score": 1.0}


def second(**changes: Any) -> str:
    """A good row, then the same with changes; None takes a column away."""
    changed = {column: value for column, value in {**GOOD, **changes}.items() if value is not None}
    return "".join(json.dumps(row) + "\n" for row in (GOOD, changed))


MISTAKES = {
    "nothing in it": ("", "is empty"),
    "blank lines only": ("\n\n", "holds no responses"),
    "not JSON": ("prompt,response\n", "is neither Parquet nor JSON lines: line 1 is 'prompt,response'"),
    "a broken line": (f"{json.dumps(GOOD)}\n{{\n", "row 2: the line is not JSON"),
    "a list": ("[1, 2]\n", "row 1: [1, 2] is not a JSON object"),
    "cut Parquet": ("PAR1 and no more", "cannot be read as Parquet"),
    "other columns": ('{"question": "1+1"}\n', "is not a rollout file: it holds question; ours has prompt, response and score, trl's"),
    "no prompt": ('{"response_ids": [1], "score": 1}\n', "has no column prompt or prompt_ids; it holds response_ids, score"),
    "no score": ('{"prompt_ids": [1], "response_ids": [1]}\n', "has no column score"),
    "neither text nor ids": (second(response_ids=None), "row 2: response and response_ids are both missing"),
    "text without a tokenizer": (second(prompt_ids=None, prompt="1"), "row 2: prompt is text, which needs a tokenizer; give --model DIR"),
    "text that is a number": (second(response=3), "row 2: response is 3; give text"),
    "chat messages": (second(prompt=[{"role": "user", "content": "a"}]), "row 2: prompt is [{'role': 'user', 'content': 'a'}]; give text;"),
    "half a character": (second(answer="\ud83d"), "row 2: answer is '\\ud83d', which has an unpaired surrogate character"),
    "ids that are text": (second(response_ids="567"), "row 2: response_ids is '567'; give a list of token ids"),
    "a fraction among ids": (second(response_ids=[5, 6.5]), "row 2: response_ids holds 6.5 at position 2"),
    "a negative id": (second(response_ids=[-1]), "row 2: response_ids holds -1 at position 1"),
    "true among ids": (second(response_ids=[True]), "row 2: response_ids holds True at position 1"),
    "no tokens": (second(response_ids=[]), "row 2: response has no tokens"),
    "an empty prompt": (second(prompt_ids=[]), "row 2: prompt has no tokens"),
    "a word as score": (second(score="good"), "row 2: score is 'good'; give a finite number"),
    "an infinite score": (second(score=float("inf")), "row 2: score is inf"),
    "an infinite advantage": (second(advantage=float("-inf")), "row 2: advantage is -inf"),
    "a list as reward": (second(reward=[1]), "row 2: reward is [1]"),
    "too few log-probs": (second(logp=[-1, -1]), "row 2: logp holds 2 log-probs"),
    "a positive log-prob": (
        second(logp=[-1, 0.5, -1]),
        "row 2: logp holds 0.5 at position 2; give a list of log-probs (finite and at most 0",
    ),
    "an infinite log-prob": (second(logp=[-1, -float("inf"), -1]), "row 2: logp holds -inf at position 2"),
    "log-probs here and there": (second(logp=[-1, -1, -1]), "row 1: logp is missing though other rows have it"),
    "classes here and there": (second(token_class=["a", "b", "c"]), "row 1: token_class is missing though other rows have it"),
    "too long a mask": (second(mask=[True] * 4), "row 2: mask holds 4 booleans (true or false) but the response has 3 tokens"),
    "a mask of words": (second(mask=["a", "b", "c"]), "row 2: mask holds 'a' at position 1"),
    "a mask of nothing": (second(mask=[0, 0, 0]), "row 2: mask marks no token as sampled"),
    "classes that are numbers": (second(token_class=[1, 2, 3]), "row 2: token_class holds 1 at position 1; give a list of strings"),
    "finished in words": (second(finished="yes"), "row 2: finished is 'yes'; give true or false"),
    "a group here and there": (second(group="a"), "row 1: group is None; give a string or a whole number"),
    "a group that is a fraction": (second(group=1.5), "group is None"),
    "a group of two prompts": (
        "".join(json.dumps({**GOOD, "group": "a", "prompt_ids": ids}) + "\n" for ids in ([3], [4])),
        "row 2: group is 'a', as in row 1, but the prompt differs",
    ),
    "several steps": (
        "".join(json.dumps({**GOOD, "step": step}) + "\n" for step in (3, 1, 2)),
        "holds 3 steps; choose one with --step: 1, 2, 3",
    ),
    "a step here and there": (second(step=2), "row 1: step is None; give a whole number"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, mistake: str) -> None:
    content, words = MISTAKES[mistake]
    path = tmp_path / "rollouts.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_rollouts(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


WITH_A_MODEL = {
    "an id beyond the vocabulary": (second(response_ids=[5, 9999]), "row 2: response_ids holds 9999 but the model knows ids below"),
    "characters without a token": (
        second(response_ids=None, response="é"),
        "row 2: response is 'é', which the model's tokenizer cannot encode",
    ),
    "nothing written": (second(response_ids=None, response="", finished=False), "row 2: response has no tokens"),
    "log-probs of other tokens": (
        second(response_ids=None, response="12", logp=[-1, -1]),
        "row 2: logp holds 2 log-probs (finite and at most 0, or null) but the response has 3 tokens",
    ),
}


@pytest.mark.parametrize("mistake", WITH_A_MODEL)
def test_a_mistake_that_only_a_model_shows(tmp_path: Path, mistake: str) -> None:
    content, words = WITH_A_MODEL[mistake]
    path = tmp_path / "rollouts.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_rollouts(path, tiny_policy())
    assert words in str(caught.value)


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_rollouts(path)
    path.write_text(second())
    with pytest.raises(ConfigError, match=r"step is 4 but .* has no steps"):
        read_rollouts(path, step=4)
    path.write_text("".join(json.dumps({**GOOD, "step": step}) + "\n" for step in range(30)))
    with pytest.raises(ConfigError, match=r"step 99 is not in .*; it holds 0, 1, .*, 11, \.\.\. 29"):
        read_rollouts(path, step=99)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="neither Parquet nor JSON lines in UTF-8"):
        read_rollouts(path)


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_rows(path, [GOOD])
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"out\.jsonl exists; name another file, or overwrite it with --force"):
        write_rows(path, [GOOD, GOOD])
    with pytest.raises(TypeError):
        write_rows(path, [GOOD, {**GOOD, "group": object()}], force=True)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
    with pytest.raises(ValueError, match="colour is not a column of a rollout file"):
        write_rows(path, [{**GOOD, "colour": "red"}], force=True)
    for name, words in (("out.csv", "must end in .parquet or .jsonl"), ("no/out.jsonl", "does not exist"), ("folder.jsonl", "is a folder")):
        (tmp_path / "folder.jsonl").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=words):
            check_out(tmp_path / name, force=True)


COMMANDS = {
    "no file": (["credit", "none.jsonl"], "rollout file none.jsonl cannot be read: No such file"),
    "unknown recipe": (["credit", "ids.jsonl", "--recipe", "grp"], "recipe 'grp' is not known; did you mean 'grpo'?"),
    "second rollout file": (["credit", "ids.jsonl", "ids.jsonl"], "ids.jsonl is not a config file (.toml)"),
    "no such model": (["credit", "ids.jsonl", "--model", "steps-shft"], "did you mean 'steps-shift'?"),
    "output exists": (["credit", "ids.jsonl", "--recipe", "rloo", "--out", "ids.jsonl"], "out ids.jsonl exists"),
    "no model, no log-probs": (["credit", "ids.jsonl", "--recipe", "rloo"], "the file has no logp, so a model must score its tokens"),
    "no model, hidden states": (["credit", "logp.jsonl", "--recipe", "delta"], "credit 'delta' compares hidden states; give --model DIR"),
    "no model, entropy": (["credit", "logp.jsonl", "--recipe", "forking-tokens"], "credit 'forking' ranks the batch's tokens by entropy"),
    "revisions": (["credit", "logp.jsonl", "--recipe", "ibpo"], "recipe 'ibpo' asks the policy to revise failed responses, so it cannot"),
    "continuations": (["credit", "logp.jsonl", "--recipe", "vineppo"], "recipe 'vineppo' continues responses from the middle"),
    "greedy responses": (["credit", "logp.jsonl", "--recipe", "remax"], "recipe 'remax' compares with the policy's greedy response"),
    "reference": (["credit", "logp.jsonl", "kl.toml", "--recipe", "rloo"], "kl.beta is 0.1 but a rollout file comes without a reference"),
    "limit below a response": (
        ["credit", "logp.jsonl", "short.toml", "--recipe", "rloo"],
        "sampling.max_new_tokens is 2 but a response in the file has 3 tokens",
    ),
    "one response a prompt": (
        ["credit", "lone.jsonl", "--recipe", "rloo"],
        "sampling.group_size is 1 but advantage 'rloo' compares siblings",
    ),
    "recipe against a file's stages": (["credit", "logp.jsonl", "stages.toml", "--recipe", "grpo"], "stages.toml has recipe dapo and sets"),
    "nothing to convert": (["convert", "--out", "o.parquet"], "files"),
    "a rollout file": (["convert", "ids.jsonl", "--out", "o.parquet"], "ids.jsonl is already a rollout file"),
    "not TRL's": (
        ["convert", "verl.jsonl", "--from", "trl", "--out", "o.parquet"],
        "is not in trl's format: it has no advantage, completion, prompt",
    ),
    "no such score": (["convert", "verl.jsonl", "--score", "acc", "--out", "o.parquet"], "score column 'acc' is not in verl.jsonl"),
    "convert over a file": (["convert", "verl.jsonl", "--out", "ids.jsonl"], "out ids.jsonl exists"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "ids.jsonl").write_text(second(score=0))
    with_logp = {**GOOD, "logp": [-1.0, -2.0, -3.0]}
    (tmp_path / "logp.jsonl").write_text("".join(json.dumps({**with_logp, "score": score}) + "\n" for score in (0, 1)))
    (tmp_path / "lone.jsonl").write_text(json.dumps(with_logp) + "\n")
    (tmp_path / "verl.jsonl").write_text(json.dumps({"input": "1", "output": "2", "gts": "2", "score": 1, "step": 1}) + "\n")
    (tmp_path / "kl.toml").write_text("[kl]\nbeta = 0.1\n")
    (tmp_path / "short.toml").write_text("[sampling]\nmax_new_tokens = 2\n")
    (tmp_path / "stages.toml").write_text('recipe = "dapo"\n[credit]\ntype = "delta"\n')
    return tmp_path


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_mistake_on_the_command_line_is_named_and_nothing_is_written(place: Path, mistake: str) -> None:
    assert_refused(*COMMANDS[mistake], place)

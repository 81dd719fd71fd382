"""Every mistake a user can make on the command line: a word that names it, exit code 2, nothing written."""

from pathlib import Path

import pytest

from fault.command import assert_refused

MISTAKES = {
    "unknown command": (["trian"], "did you mean 'train'?"),
    "unknown recipe": (["train", "--recipe", "delt"], "recipe 'delt' is not known; did you mean 'delta'?"),
    "unknown flag": (["train", "--recipe", "delta", "--credit.lam-mn", "0.5"], "--credit.lam-min"),
    "unknown stage type": (["train", "--credit.type", "dleta"], "credit.type is 'dleta'; it must be one of 'uniform', 'delta'"),
    "model that is no folder": (["train", "--model", "steps-shft"], "did you mean 'steps-shift'?"),
    "folder that is no model": (["train", "--model", "empty"], "model folder empty has no config.json and no tokenizer_config.json"),
    "group of one": (
        ["train", "--recipe", "dapo", "--sampling.group-size", "1"],
        "sampling.group_size is 1 but advantage 'grpo' compares siblings",
    ),
    "more optimizer steps than responses": (
        ["train", "--optimizer.steps-per-batch", "300"],
        "optimizer.steps_per_batch is 300 but a batch holds only 256 responses",
    ),
    "more optimizer steps than prompts": (
        ["train", "--recipe", "dapo", "--batching.type", "query-preserved", "--optimizer.steps-per-batch", "33"],
        "optimizer.steps_per_batch is 33 but a batch holds only 32 prompts",
    ),
    "token budget below a response": (["train", "--optimizer.max-tokens", "40"], "optimizer.max_tokens is 40 but one response may take 48"),
    "token budget below a prompt with its response": (
        ["train", "--optimizer.max-tokens", "50"],
        "optimizer.max_tokens is 50 but a prompt with its response may take 58 tokens",
    ),
    "longer than the model can read": (
        ["train", "--sampling.max-new-tokens", "300"],
        "model 'steps-shift' reads 256 tokens at most but a prompt with its response may take 310",
    ),
    "task with too few problems": (["train", "--task.operations", "1"], "task cannot supply 512 held-out problems"),
    "model of another task": (["train", "--model", "cotadd"], "model 'cotadd' has no tokens for prompts of task 'steps'"),
    "recipe against a file's stages": (
        ["train", "stages.toml", "--recipe", "grpo"],
        "stages.toml has recipe dapo and sets credit, which --recipe grpo would not replace",
    ),
    "recipe that is a list": (["train", "list.toml"], "recipe ['delta'] is not known"),
    "NaN": (["train", "--optimizer.learning-rate", "nan"], "Input should be a finite number"),
    "infinity": (["train", "--objective.clip-high", "inf"], "Input should be a finite number"),
    "out of range": (["train", "--objective.clip-low", "1.5"], "less than or equal to 1"),
    "bounds the wrong way round": (["train", "--recipe", "delta", "--credit.lam-min", "2"], "lam_min must not be above"),
    "no steps": (["train", "--steps", "0"], "steps is 0"),
    "output is a file": (["train", "--out", "file.txt"], "out file.txt is a file; give a folder"),
    "output below a file": (["train", "--out", "file.txt/run"], "which is a file; give a folder"),
    "output not writable": (["train", "--out", "/proc/tokencredit/run"], "cannot be created"),
    "output exists": (["train", "--out", "full", "--exists", "fail"], "out full exists and is not empty"),
    "missing config file": (["train", "none.toml"], "config file none.toml does not exist"),
    "config file after a flag": (["train", "--seed", "1", "good.toml"], "good.toml comes after a flag"),
    "broken TOML": (["train", "broken.toml"], "config file broken.toml cannot be read as TOML"),
    "unknown key": (["train", "key.toml"], "stpes is not a setting; did you mean 'steps'?"),
    "unknown nested key": (["train", "nested.toml"], "credit.lam_mn is not a setting; did you mean 'lam_min'?"),
    "unknown key of a plain table": (["train", "table.toml"], "sampling.promts is not a setting; did you mean 'prompts'?"),
    "number that is a word": (["train", "word.toml"], "optimizer.learning_rate is 'fast'"),
    "resume of no run": (["train", "--resume", "empty"], "resume empty is not a run folder"),
    "resume of a folder without a configuration": (["train", "--resume", "full", "--seed", "3"], "resume full is not a run folder"),
    "unknown benchmark": (["bench", "sped"], "did you mean 'speed'?"),
    "benchmark of nothing": (["bench", "speed", "--steps", "0"], "both must be at least 1"),
    "TRL where there is none": (["bench", "speed", "--trl-python", "none"], "trl-python none does not exist"),
    "TRL on another device": (["bench", "speed", "--device", "cuda", "--trl-python", "file.txt"], "TRL is run on the CPU here"),
    "no such device": (["train", "--device", "tpu"], "tpu"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "keep.txt").write_text("mine")
    (tmp_path / "file.txt").write_text("mine")
    (tmp_path / "good.toml").write_text("steps = 3\n")
    (tmp_path / "stages.toml").write_text('recipe = "dapo"\n[credit]\ntype = "delta"\n')
    (tmp_path / "list.toml").write_text('recipe = ["delta"]\n')
    (tmp_path / "broken.toml").write_text("steps = = 3\n")
    (tmp_path / "key.toml").write_text("stpes = 3\n")
    (tmp_path / "nested.toml").write_text('recipe = "delta"\n[credit]\nlam_mn = 0.5\n')
    (tmp_path / "table.toml").write_text("[sampling]\npromts = 4\n")
    (tmp_path / "word.toml").write_text('[optimizer]\nlearning_rate = "fast"\n')
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_nothing_is_written(place: Path, mistake: str) -> None:
    assert_refused(*MISTAKES[mistake], place)

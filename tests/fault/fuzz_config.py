"""Damaged config files and command lines."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import tomli_w

from fault.fuzz import DEEP, NASTY_VALUES, Trial, damage_values, damaged
from tokencredit.commands.flags import parse_train
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import read_toml, resolve, to_toml
from tokencredit.config.train import TrainConfig

IN_TOML = tuple(value for value in NASTY_VALUES if value not in (None, [None], DEEP))
SMALL = """# differences only
recipe = "dapo"
seed = 7
[task]
type = "cotadd"
digits = 3
[sampling]
prompts = 16
temperature = 0.9
[optimizer]
learning_rate = 1e-4
beta1 = 0.85
[objective]
type = "ppo-clip"
clip_high = 0.3
"""


def _whole_table(rng: Random) -> dict[str, Any]:
    """As a run stores it, every field spelled out; or differences only."""
    if rng.random() < 0.3:
        return tomllib.loads(SMALL)
    return tomllib.loads(to_toml(resolve([{"recipe": rng.choice(sorted(RECIPES))}])))


def check_config(asked: Mapping[str, Any], found: TrainConfig) -> None:
    """Everything asked for is there as it was written, and writing it down and reading it gives the same again."""
    _same(asked, found.model_dump(), ())
    assert resolve([tomllib.loads(to_toml(found))]) == found, "not the same when stored and read again"


def _same(asked: Mapping[str, Any], found: Mapping[str, Any], path: tuple[str, ...]) -> None:
    for key, value in asked.items():
        where = ".".join((*path, key))
        if isinstance(value, Mapping):
            _same(value, found[key], (*path, key))
        else:
            expected = None if value == "none" and found[key] is None else value
            told = list(found[key]) if isinstance(found[key], tuple) else found[key]
            expected = float(expected) if isinstance(told, float) and isinstance(expected, int) and expected is not True else expected
            assert told == expected, f"{where} is {value!r:.60} in the file and {found[key]!r:.60} in the configuration"
            assert isinstance(told, bool) == isinstance(expected, bool), f"{where} is {value!r:.60} in the file and {told!r:.60} now"


def _reading(path: Path) -> Trial:
    def read() -> None:
        asked = read_toml(path)
        check_config(asked, resolve([asked]))

    return Trial(read, (str(path), *TrainConfig.model_fields, "is not a setting"))


def config_bytes(rng: Random, place: Path) -> Trial:
    path = place / "config.toml"
    path.write_bytes(damaged(rng, tomli_w.dumps(_whole_table(rng)).encode()))
    return _reading(path)


def config_values(rng: Random, place: Path) -> Trial:
    path = place / "config.toml"
    path.write_bytes(tomli_w.dumps(damage_values(rng, _whole_table(rng), IN_TOML)).encode("utf-8", "surrogatepass"))
    return _reading(path)


WORDS = (
    "", "-", "--", "-1", "0", "1", "3", "1.5", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 5_000, "true", "True",
    "none", "None", "[]", "{}", "a b",
    "é", "\u202e", "x" * 1_000, "*", "--help-me", "--seed=", "--=", "a=b", "grpo", "delta", "cuda", "config.toml",
    "none.toml", "--resume", "--out",
    "--dry-run", "--no-report", "--report", "--credit", "--credit.type", "--recipe",
)  # fmt: skip


GOOD_FLAGS = (
    ("--recipe", "grpo"), ("--seed", "3"), ("--steps", "5"), ("--sampling.prompts", "12"), ("--sampling.temperature", "0.7"),
    ("--optimizer.learning-rate", "1e-4"), ("--task.type", "steps"), ("--evaluation.every", "0"), ("--device", "cpu"),
    ("--dtype", "float64"),
    ("--model", "steps-shift"), ("--save-every", "4"), ("--credit.type", "uniform"), ("--diagnose.groups", "2"),
)  # fmt: skip


def command_line(rng: Random, place: Path) -> Trial:
    """A good line with words changed, left out, twice, in another order."""
    path = place / "config.toml"
    path.write_text(SMALL)
    line = [str(path)] if rng.random() < 0.4 else []
    for flag, value in rng.sample(GOOD_FLAGS, 3):
        line += [flag, value]
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(line))
        line = rng.choice(
            (
                [*line[:at], rng.choice(WORDS), *line[at:]],
                [*line[:at], rng.choice(WORDS), *line[at + 1 :]],
                [*line[:at], *line[at + 1 :]] if len(line) > 1 else line,
                [*line, line[at]],
                [*line[at:], *line[:at]],
            )
        )
    line = [word for word in line if word not in ("-h", "--help")]
    return Trial(lambda: _parsed(line), ("config file ", *TrainConfig.model_fields, ".toml", "not a setting"))


def _parsed(line: list[str]) -> None:
    options = parse_train(line)
    assert resolve([tomllib.loads(to_toml(options.config))]) == options.config, "not the same when stored and read again"


KINDS = {"config file, bytes": config_bytes, "config file, values": config_values, "command line": command_line}

"""`tokencredit audit` as a person and as a program meet it."""

import json
from pathlib import Path

import pytest

from fault.command import tokencredit
from tokencredit.audit import CAUSES, CONDITIONS
from tokencredit.config.recipes import RECIPES

OWN = """
import torch

def linear(inputs):
    return -inputs.credit * inputs.logp

def per_response(inputs):
    \"\"\"A single number, divided by each response's own length.\"\"\"
    length = inputs.mask.sum(-1, keepdim=True)
    return (-inputs.credit * inputs.logp * inputs.mask / length).sum() / len(inputs.mask)

def with_entropy_bonus(inputs):
    return -inputs.credit * inputs.logp + 0.1 * inputs.logp

def by_row(inputs):
    return -inputs.credit * inputs.logp * (1 + inputs.row % 2)[:, None]

def not_a_number(inputs):
    return -inputs.credit * inputs.logp / 0.0 * 0.0

def wrong_shape(inputs):
    return inputs.logp.sum(-1)

def no_gradient(inputs):
    return inputs.logp.detach()

def broken(inputs):
    raise RuntimeError("no such luck")

number = 3
"""


def cells(*arguments: str, cwd: Path) -> dict[str, dict]:
    done = tokencredit("audit", *arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told) == {"seed", "conditions", "causes", "rows"}
    assert list(told["conditions"]) == list(CONDITIONS)
    assert set(told["causes"]) == {*CAUSES, "other"}
    return {row["recipe"]: row["cells"] for row in told["rows"]}


def test_json_holds_residual_silence_and_causes(tmp_path: Path) -> None:
    told = cells("grpo", "vineppo", "dfpo", cwd=tmp_path)
    assert list(told) == ["grpo", "vineppo", "dfpo"]
    assert told["grpo"]["uneven lengths"]["causes"] == ["divisor"]
    assert 0 < told["grpo"]["uneven lengths"]["residual"] < 1
    assert told["vineppo"]["on-policy"] == {"residual": None, "silent": True, "causes": []}
    assert all(cell["residual"] <= 1e-12 for cell in told["dfpo"].values())


def test_the_table_names_every_recipe_condition_and_cause(tmp_path: Path) -> None:
    said = tokencredit("audit", cwd=tmp_path).stdout
    for word in (*RECIPES, *CAUSES, "on-policy", "off-policy", "uneven lengths", "split groups", "dead groups", "silent"):
        assert word in said, word
    for condition in CONDITIONS.values():
        assert " ".join((condition.__doc__ or "").split()) in " ".join(said.split())
    row = next(line for line in said.splitlines() if "│ dfpo " in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["0"] * len(CONDITIONS)


def test_a_composition_of_one_s_own_is_audited_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('recipe = "grpo"\n[objective]\naggregation = "token-mean"\n[batching]\ntype = "query-preserved"\n')
    told = cells("mine.toml", cwd=tmp_path)["mine.toml"]
    assert told["uneven lengths"]["residual"] <= 1e-12
    assert told["split groups"]["residual"] <= 1e-12
    assert told["clipping"]["causes"] == ["clip"]


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("linear", ["--base", "cancellation"], {}),
        ("linear", [], {"split groups": ["cut"]}),
        ("linear", ["--base", "cancellation", "--aggregation", "sequence-mean"], {"uneven lengths": ["divisor"]}),
        ("per_response", ["--base", "cancellation"], {"uneven lengths": ["divisor"]}),
        ("with_entropy_bonus", ["--base", "cancellation"], {condition: ["penalty"] for condition in CONDITIONS}),
        ("by_row", ["--base", "cancellation"], {condition: ["other"] for condition in CONDITIONS}),
    ],
)
def test_a_function_of_one_s_own(tmp_path: Path, name: str, flags: list[str], expected: dict[str, list[str]]) -> None:
    (tmp_path / "mylosses.py").write_text(OWN)
    told = cells("--objective", f"mylosses:{name}", *flags, cwd=tmp_path)[f"mylosses:{name}"]
    assert {condition: cell["causes"] for condition, cell in told.items() if cell["residual"] > 1e-12} == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--objective", "mylosses"], "write package.module:function"),
        (["--objective", "nowhere:f"], "module 'nowhere' cannot be imported"),
        (["--objective", "mylosses:absent"], "has no function 'absent'"),
        (["--objective", "mylosses:number"], "has no function 'number'"),
        (["--objective", "mylosses:wrong_shape"], "it must return a tensor of shape"),
        (["--objective", "mylosses:no_gradient"], "does not depend on inputs.logp"),
        (["--objective", "mylosses:broken"], "RuntimeError: no such luck"),
        (["--objective", "mylosses:linear", "--base", "dapoo"], "dapo"),
        (["--objective", "mylosses:linear", "grpo"], "exclude each other"),
        (["--objective", "mylosses:not_a_number"], "gradient is not finite"),
        (["grpo", "--base", "dapo"], "--base dapo is only valid with --objective"),
        (["grpo", "--aggregation", "constant"], "--aggregation constant is only valid with --objective"),
        (["grop"], "grpo"),
        (["missing.toml"], "does not exist"),
    ],
)
def test_mistakes_are_told_in_words(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "mylosses.py").write_text(OWN)
    done = tokencredit("audit", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr

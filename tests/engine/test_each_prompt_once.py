"""Recipes made for one response to a prompt ask as many prompts as there would have been responses, unless somebody says otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.analysis.measure import measure
from tokencredit.commands.flags import parse_train
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import resolve, to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.credit import CREDITS, CreditInputs
from tokencredit.errors import ConfigError
from tokencredit.lab.commands.bench_credit import parse_credit
from tokencredit.objective.base import token_weight
from tokencredit.policy.policy import load_policy
from tokencredit.tasks import Steps
from tokencredit.trainer.step import microscope_config

ONCE = [name for name, entry in RECIPES.items() if entry.asks_once]


def layout(config: TrainConfig) -> tuple[int, int, int]:
    return config.sampling.prompts, config.sampling.group_size, config.optimizer.steps_per_batch


def test_which_recipes_ask_once() -> None:
    assert ONCE == ["c-rf", "ntf", "ntf-whitened", "right-once"]
    assert resolve([]).recipe == "right-once"


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([{}], (256, 1, 8)),
        ([{"recipe": "dapo"}], (32, 8, 4)),
        ([{"recipe": "ntf"}], (256, 1, 4)),
        ([{"task": {"type": "arithmetic"}}], (192, 1, 8)),
        ([{"task": {"type": "arithmetic"}, "recipe": "c-rf"}], (192, 1, 1)),
        ([{"sampling": {"prompts": 64}}], (64, 1, 8)),
        ([{"sampling": {"group_size": 4}}], (32, 4, 8)),
        ([{"sampling": {"prompts": 16}}, {"sampling": {"group_size": 2}}], (16, 2, 8)),
        ([{"optimizer": {"steps_per_batch": 2}}], (256, 1, 2)),
        ([{"optimizer": {"steps_per_batch": 64}, "batching": {"type": "query-preserved"}}], (256, 1, 64)),
        ([{"advantage": {"type": "grpo"}}], (32, 8, 8)),
        ([{"recipe": "ntf", "credit": {"type": "ktae"}}], (32, 8, 4)),
        ([{"recipe": "c-rf", "filter_groups": True}], (32, 8, 4)),
        ([{"engine": "trl"}], (32, 8, 8)),
    ],
)
def test_layers_lay_a_batch_out(layers: list[dict[str, Any]], expected: tuple[int, int, int]) -> None:
    assert layout(resolve(layers)) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", (256, 1, 8)),
        ("--sampling.prompts 64", (64, 1, 8)),
        ("--sampling.group-size 4", (32, 4, 8)),
        ("--sampling.group_size=4", (32, 4, 8)),
        ("--sampling.group-size 4 --sampling.prompts 10", (10, 4, 8)),
        ("--recipe dapo --sampling.group-size 4", (32, 4, 4)),
        ("--recipe ntf --optimizer.steps-per-batch 2", (256, 1, 2)),
        ("--advantage.type rloo", (32, 8, 8)),
    ],
)
def test_flags_do_too(flags: str, expected: tuple[int, int, int]) -> None:
    assert layout(parse_train(flags.split()).config) == expected


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"optimizer": {"steps_per_batch": 257}}, "a batch holds only 256 responses to deal"),
        ({"optimizer": {"steps_per_batch": "8"}}, "optimizer.steps_per_batch"),
        ({"optimizer": 8}, "optimizer"),
        ({"batching": {"type": "stratified"}}, "sampling.group_size is 1"),
        ({"sampling": {"group_size": 2}, "optimizer": {"steps_per_batch": 65}}, "only 64 responses"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(layer: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve([layer])


@pytest.mark.parametrize("name", ONCE)
def test_a_written_configuration_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    config = resolve([{"recipe": name, "sampling": {"prompts": 12, "group_size": 3}}])
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert parse_train([str(tmp_path / "config.toml")]).config == config


def test_a_group_to_look_at_has_several_responses() -> None:
    assert resolve([]).sampling.siblings == 8
    assert resolve([{"sampling": {"group_size": 3}}]).sampling.siblings == 3


def test_the_microscope_looks_at_as_many_responses_as_it_would_with_groups() -> None:
    looks = {"diagnose": {"groups": 4}}
    assert microscope_config(resolve([looks]), seed=0).groups == 32
    assert microscope_config(resolve([looks, {"sampling": {"group_size": 4}}]), seed=0).groups == 4


def test_whether_a_task_suits_is_judged_by_groups() -> None:
    """A group of one is never mixed, and every task would be too hard or too easy."""
    config, task = resolve([{"device": "cpu"}]), Steps()
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")
    found = measure(policy, task, task.problems(12, split="held-out", seed=0), config, samples=4)
    assert found.group_size == 4
    assert found.mixed.value > 0.3


def test_credit_is_measured_in_groups_also_for_a_run_without_them(tmp_path: Path) -> None:
    (tmp_path / "once.toml").write_text(to_toml(resolve([])))
    for arguments in (["steps-shift"], ["steps-shift", str(tmp_path / "once.toml")]):
        _, _, [config] = parse_credit(arguments)
        assert config.sampling.group_size == 8


@pytest.mark.parametrize(
    ("score", "expected"), [([0.0, 0.0, 0.0, 0.0], [0, 0, 0, 0]), ([1.0, 0.0, 0.0, 0.0], [2, 0, 0, 0]), ([1.0] * 4, [1] * 4)]
)
def test_only_right_responses_receive_credit(score: list[float], expected: list[float]) -> None:
    recipe, count = RECIPES["right-once"].recipe, len(score)
    reward, rows = torch.tensor(score), torch.arange(count)
    told = recipe.advantage.model_dump(exclude={"type"})
    advantage = ADVANTAGES[recipe.advantage.type](AdvantageInputs(reward=reward, group=rows, score=reward), {}, **told).advantage
    inputs = CreditInputs(
        advantage=advantage,
        mask=torch.ones(count, 3, dtype=torch.bool),
        group=rows,
        tokens=torch.zeros(count, 3, dtype=torch.long),
        logp=torch.zeros(count, 3),
        entropy=torch.zeros(count, 3),
        seed=0,
    )
    credit = CREDITS[recipe.credit.type](inputs, {}, **recipe.credit.model_dump(exclude={"type"})).credit
    assert credit.tolist() == [[value] * 3 for value in expected]


def test_a_token_weighs_the_same_in_a_short_response_as_in_a_long_one() -> None:
    """Otherwise a policy that hears of right responses alone learns to answer at once (docs/results.md, GSM8K)."""
    mask = torch.tensor([[True, True, False, False, False, False], [True] * 6])
    weight = token_weight(mask, mask.sum(dim=1).double(), aggregation=RECIPES["right-once"].recipe.objective.aggregation)
    torch.testing.assert_close(weight, mask.double())

"""Recipes that must be one another when a number is turned off: whole runs, compared to the bit."""

from pathlib import Path

import pytest

from engine.runs import run, same_weights, small_config

SAME = [
    ("ntf keeping every token is c-rf", {"recipe": "ntf", "credit": {"keep": 1.0}}, {"recipe": "c-rf"}),
    ("ibpo without weight is grpo", {"recipe": "ibpo", "shape": {"weight": 0.0}}, {"recipe": "grpo", "model": "steps-revise"}),
    (
        "an edit mask that lets all tokens through is no mask",
        {"recipe": "ibpo-mask", "credit": {"unchanged": 1.0}},
        {"recipe": "ibpo"},
    ),
    ("asym 1 is mean-centred", {"recipe": "asym", "advantage": {"delta": 1.0}}, {"recipe": "asym", "advantage": {"type": "dr-grpo"}}),
    ("power 1 is mean-centred", {"recipe": "power", "advantage": {"alpha": 1.0}}, {"recipe": "power", "advantage": {"type": "dr-grpo"}}),
    ("forking every token is dapo", {"recipe": "forking-tokens", "credit": {"keep": 1.0}}, {"recipe": "dapo"}),
    (
        "balancing by weights where sides weigh the same is query-preserved",
        {"recipe": "dr-grpo", "batching": {"type": "reward-balanced", "method": "reweight", "mass": "responses"}},
        {"recipe": "dr-grpo", "batching": {"type": "query-preserved"}},
    ),
]

DIFFERENT = [
    ({"recipe": "ntf"}, {"recipe": "c-rf"}),
    ({"recipe": "ibpo"}, {"recipe": "grpo", "model": "steps-revise"}),
    ({"recipe": "ibpo-mask"}, {"recipe": "ibpo"}),
    ({"recipe": "asym"}, {"recipe": "asym", "advantage": {"type": "dr-grpo"}}),
    ({"recipe": "forking-tokens"}, {"recipe": "dapo"}),
]


@pytest.mark.parametrize(("why", "one", "other"), SAME, ids=[why for why, _, _ in SAME])
def test_turned_off_it_is_the_other(tmp_path: Path, why: str, one: dict, other: dict) -> None:
    for name, fields in (("one", one), ("other", other)):
        run(small_config(steps=2, dtype="float64", **fields), tmp_path / name)
    assert same_weights(tmp_path / "one", tmp_path / "other"), why


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=[one["recipe"] for one, _ in DIFFERENT])
def test_turned_on_it_is_not(tmp_path: Path, one: dict, other: dict) -> None:
    for name, fields in (("one", one), ("other", other)):
        run(small_config(steps=2, dtype="float64", **fields), tmp_path / name)
    assert not same_weights(tmp_path / "one", tmp_path / "other")

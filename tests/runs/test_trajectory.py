"""Nothing that training computes may change by accident."""

import json

import pytest

from golden.trajectory import STORED, trajectory
from tokencredit.config.recipes import RECIPES


@pytest.mark.parametrize("recipe", RECIPES)
def test_three_steps_are_what_they_were(recipe: str) -> None:
    stored = json.loads(STORED.read_text())[recipe]
    measured = trajectory(recipe)
    assert len(measured) == len(stored) == 3
    for now, then in zip(measured, stored, strict=True):
        assert now == pytest.approx(then, rel=1e-7, abs=1e-9)

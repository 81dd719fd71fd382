"""The share of optimizer steps that split a group, against a twin that compares every pair of rows."""

from fractions import Fraction
from random import Random

import pytest
import torch

from tokencredit.batching import make_plan
from tokencredit.batching.microbatch import splitting_share


def naive_share(steps: list[list[int]], group: list[int]) -> Fraction:
    splitting = 0
    for number, rows in enumerate(steps):
        found = False
        for other_number, others in enumerate(steps):
            for row in rows:
                for other in others:
                    found = found or (number != other_number and group[row] == group[other])
        splitting += found
    return Fraction(splitting, max(1, len(steps)))


def test_share_equals_the_naive_twin() -> None:
    """Groups of any size and name, rows left out of the plan, empty steps; as a list and as a tensor."""
    draw, met = Random(5), set()
    for _ in range(300):
        steps = draw.randint(0, 5)
        group = [draw.choice([-7, 0, 3, 10**12, 5]) for _ in range(draw.randint(0, 8))]
        dealt: list[list[int]] = [[] for _ in range(steps)]
        for row in range(len(group)):
            if steps and draw.random() < 0.8:
                dealt[draw.randrange(steps)].append(row)
        expected = float(naive_share(dealt, group))
        met.add(expected)
        assert splitting_share(dealt, group) == expected
        assert splitting_share((tuple(rows) for rows in dealt), torch.tensor(group, dtype=torch.long)) == expected
    assert {0.0, 0.5, 0.6, 1.0} <= met


def planned_share(kind: str, *, seed: int, prompts: int = 8, size: int = 4, optimizer_steps: int = 4) -> float:
    group = [row // size for row in range(prompts * size)]
    plan = make_plan([3] * len(group), group, kind=kind, optimizer_steps=optimizer_steps, max_tokens=999, seed=seed)  # type: ignore[arg-type]
    return splitting_share([step.rows for step in plan.steps], group)


@pytest.mark.parametrize("optimizer_steps", [1, 2, 3, 8])
def test_whole_prompts_are_never_split(optimizer_steps: int) -> None:
    assert {planned_share("query-preserved", seed=seed, optimizer_steps=optimizer_steps) for seed in range(20)} == {0.0}


def test_shuffled_rows_split_nearly_always() -> None:
    """Steps of 8 rows from 8 groups of 4: two whole groups are 28 of 10 518 300 choices."""
    shares = [planned_share("shuffled", seed=seed) for seed in range(20)]
    assert min(shares) > 0
    assert sum(shares) / len(shares) > 0.95


def test_one_split_prompt_touches_both_of_its_steps() -> None:
    assert splitting_share([[0, 1], [2, 3], [4, 5]], [0, 0, 1, 1, 2, 1]) == pytest.approx(2 / 3)
    assert splitting_share([], [0, 0]) == 0.0

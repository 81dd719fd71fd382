"""Where to branch, against plain searches and by hand: positions, the budget, and where the values go."""

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
import torch
from torch import Tensor

from tiny import made_up_rollouts
from tokencredit.rollout.branching import BranchPoint, every_few_tokens, prefix_values, starts_in_tokens, within_budget
from tokencredit.tasks import Problem, Steps

NAN = math.nan


def test_every_few_tokens() -> None:
    for length in range(24):
        for every in range(1, 9):
            assert every_few_tokens(length, every) == [t for t in range(1, length) if t % every == 0]
    assert every_few_tokens(9, 4) == [4, 8]
    assert every_few_tokens(8, 4) == [4]


# --- character offsets to tokens


def naive_starts(starts: Sequence[int], pieces: Sequence[str]) -> list[int]:
    begins = [len("".join(pieces[:position])) for position in range(len(pieces))]
    found = set()
    for start in starts:
        at_or_after = [position for position, begin in enumerate(begins) if begin >= start]
        if at_or_after and at_or_after[0] > 0:
            found.add(at_or_after[0])
    return sorted(found)


def test_starts_by_hand() -> None:
    """Tokens begin at 0, 2, 3 and 6; what starts inside one is left to the next, what starts behind all is lost."""
    pieces = ["ab", "c", "def", "g"]
    for start, expected in {0: [], 1: [1], 2: [1], 3: [2], 4: [3], 5: [3], 6: [3], 7: [], 99: []}.items():
        assert starts_in_tokens([start], pieces) == expected
    assert starts_in_tokens([6, 0, 3, 1, 2, 4], pieces) == [1, 2, 3]
    assert starts_in_tokens([4, 5, 6], pieces) == [3]
    assert starts_in_tokens([1, 2], []) == []


def test_starts_equal_a_plain_search() -> None:
    """Pieces of 0 to 4 characters (half of a letter decodes to nothing), offsets in any order, some twice."""
    draw = Random(0)
    for _ in range(300):
        pieces = ["x" * draw.randint(0, 4) for _ in range(draw.randint(0, 9))]
        starts = [draw.randint(0, 20) for _ in range(draw.randint(0, 6))]
        assert starts_in_tokens(starts, pieces) == naive_starts(starts, pieces)


STEPS = Steps()
PROBLEM = Problem(prompt="6+4-3-9-2=", answer="6")
RESPONSES = {
    "a:6+4=0;0-3=7,7-9=8;;8-2=6;#6": [2, 8, 14, 21, 27],
    "6+4=0,#0": [0, 6],
    "b:6+4=0;": [2],
    "b:6+4=0;0-3=": [2],
    "a:6+4=0;0-3;#7": [2, 12],
    "a:6+=4;#4": [7],
    "a:6+4=0;;;,0-3=7#1": [2, 11, 16],
    "#3#4": [0],
    "a:b": [],
    "": [],
}


@pytest.mark.parametrize("response", RESPONSES)
def test_steps_of_a_response_by_hand(response: str) -> None:
    """Well-formed, without preamble, cut off, malformed (nothing counts after the first that fits no step, but the answer does)."""
    assert STEPS.step_starts(PROBLEM, response) == RESPONSES[response]
    characters = [*response, "<eos>"]
    assert starts_in_tokens(STEPS.step_starts(PROBLEM, response), characters) == [at for at in RESPONSES[response] if at > 0]


# --- the budget


def some_points(count: int) -> list[BranchPoint]:
    points = [BranchPoint(number // 5, 1 + number % 5) for number in range(count)]
    Random(9).shuffle(points)
    return points


def test_all_points_without_a_budget_or_with_enough() -> None:
    points = some_points(17)
    for budget in (None, 17 * 4, 1000):
        assert within_budget(points, continuations=4, budget=budget, seed=1) == sorted(points)


@pytest.mark.parametrize("continuations", [1, 3, 4])
def test_never_more_than_the_budget_pays_for(continuations: int) -> None:
    points = some_points(17)
    for budget in range(1, 80):
        kept = within_budget(points, continuations=continuations, budget=budget, seed=budget)
        assert len(kept) * continuations <= budget
        assert len(kept) == 17 or (len(kept) + 1) * continuations > budget
        assert kept == sorted(set(kept))
        assert set(kept) <= set(points)
    assert within_budget(points, continuations=4, budget=3, seed=0) == []
    assert within_budget([], continuations=4, budget=3, seed=0) == []


def test_the_seed_decides_and_every_point_has_its_chance() -> None:
    points = some_points(10)
    drawn = [tuple(within_budget(points, continuations=2, budget=6, seed=seed)) for seed in range(1000)]
    assert drawn == [tuple(within_budget(points, continuations=2, budget=6, seed=seed)) for seed in range(1000)]
    # 3 of 10 are kept: 300 times each, give or take 14.5.
    times = Counter(point for kept in drawn for point in kept)
    assert times.keys() == set(points)
    assert all(225 < count < 375 for count in times.values())
    assert points == some_points(10)


# --- values in their places


def test_values_stand_before_their_tokens_and_nothing_else_is_known() -> None:
    rollouts = made_up_rollouts()
    points = [BranchPoint(4, 2), BranchPoint(0, 3), BranchPoint(4, 1), BranchPoint(7, 8)]
    asked: list[Sequence[BranchPoint]] = []

    def value_of(chosen: Sequence[BranchPoint]) -> Tensor:
        asked.append(chosen)
        return torch.tensor([0.25, 1.0, NAN, 0.5], dtype=torch.float32)

    values = prefix_values(rollouts, points, value_of)
    expected = [[NAN] * rollouts.mask.shape[1] for _ in range(rollouts.mask.shape[0])]
    expected[4][2], expected[0][3], expected[7][8] = 0.25, 1.0, 0.5
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0, equal_nan=True)
    assert asked == [points]


def test_without_points_nobody_is_asked() -> None:
    def never(chosen: Sequence[BranchPoint]) -> Tensor:
        raise AssertionError("asked for the value of nothing")

    values = prefix_values(made_up_rollouts(), [], never)
    assert values.shape == made_up_rollouts().mask.shape
    assert values.isnan().all()

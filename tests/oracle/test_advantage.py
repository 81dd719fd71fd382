"""Advantages against a twin that walks over siblings one by one, in exact fractions up to the square root."""

import math
from fractions import Fraction
from random import Random

import pytest
import torch

from tokencredit.advantage import group_advantage
from tokencredit.advantage.group import grpo_advantage

NAN = math.nan
KINDS = ("grpo", "dr-grpo", "rloo")
PRESETS = ("tokencredit", "trl", "verl")
EPSILON = {"tokencredit": 1e-6, "trl": 1e-4, "verl": 1e-6}

BATCHES = {
    "two even groups": ([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1]),
    "uneven groups": ([1.0, 0.0, 0.5, 0.25, 2.0, -1.0, 0.0], [0, 0, 1, 1, 1, 1, 1]),
    "scattered and odd group ids": ([1.0, 0.0, -2.0, 0.5, 3.0, 0.125], [7, -3, 7, 400, -3, 400]),
    "group of one": ([0.75, 1.0, 0.0], [5, 2, 2]),
    "only groups of one": ([0.75, -1.0, 0.0], [5, 2, 9]),
    "no spread": ([1.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 0, 1, 1]),
    "no spread, decimal": ([0.1, 0.1, 0.1, 0.7, 0.7, 0.7], [0, 0, 0, 1, 1, 1]),
    "some ungraded": ([1.0, NAN, 0.0, NAN, 0.5, 0.25], [0, 0, 0, 1, 1, 1]),
    "one graded sibling": ([NAN, 2.0, NAN, 1.0, 0.0], [0, 0, 0, 1, 1]),
    "nothing graded in a group": ([NAN, NAN, 1.0, 0.0], [0, 0, 1, 1]),
    "a lone ungraded response": ([NAN, 1.0, 0.0], [3, 1, 1]),
}


def naive_advantage(rewards: list[float], groups: list[int], *, kind: str, preset: str) -> list[float]:
    epsilon = Fraction(EPSILON[preset])
    if preset == "verl":
        rewards = [0.0 if math.isnan(reward) else reward for reward in rewards]
    advantages = []
    for i, own in enumerate(rewards):
        if math.isnan(own):
            advantages.append(0.0)
            continue
        others = [Fraction(r) for j, r in enumerate(rewards) if j != i and groups[j] == groups[i] and not math.isnan(r)]
        if not others:
            raw = Fraction(own) / (1 + epsilon) if kind == "grpo" else Fraction(own)
            advantages.append(float(raw) if preset == "verl" else 0.0)
            continue
        group = [Fraction(own), *others]
        mean = sum(group) / len(group)
        if kind == "rloo":
            advantages.append(float(Fraction(own) - sum(others) / len(others)))
        elif kind == "dr-grpo":
            advantages.append(float(Fraction(own) - mean))
        else:
            variance = sum((reward - mean) ** 2 for reward in group) / (len(group) - 1)
            advantages.append(float(Fraction(own) - mean) / (math.sqrt(variance) + float(epsilon)))
    return advantages


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", BATCHES)
def test_equals_the_naive_twin(batch: str, kind: str, preset: str) -> None:
    rewards, groups = BATCHES[batch]
    actual = group_advantage(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), kind=kind, preset=preset)
    assert actual.tolist() == pytest.approx(naive_advantage(rewards, groups, kind=kind, preset=preset), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_naive_twin_on_a_large_scattered_batch_in_float32(kind: str, preset: str) -> None:
    random = Random(7)
    rewards = [NAN if random.random() < 0.2 else random.randrange(-8, 9) / 4 for _ in range(120)]
    groups = [random.choice([-5, 0, 1, 2, 3, 17, 900]) for _ in rewards]
    actual = group_advantage(torch.tensor(rewards), torch.tensor(groups), kind=kind, preset=preset)
    assert actual.tolist() == pytest.approx(naive_advantage(rewards, groups, kind=kind, preset=preset), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "preset", "expected"),
    [
        # mean 1/4 and sample standard deviation 1/2; the fifth response is alone.
        ("grpo", "tokencredit", [0.75 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001, 0.0]),
        ("grpo", "trl", [0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, 0.0]),
        ("grpo", "verl", [0.75 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001, 2 / 1.000001]),
        ("dr-grpo", "tokencredit", [0.75, -0.25, -0.25, -0.25, 0.0]),
        ("dr-grpo", "verl", [0.75, -0.25, -0.25, -0.25, 2.0]),
        ("rloo", "tokencredit", [1.0, -1 / 3, -1 / 3, -1 / 3, 0.0]),
        ("rloo", "verl", [1.0, -1 / 3, -1 / 3, -1 / 3, 2.0]),
    ],
)
def test_one_success_in_four_by_hand(kind: str, preset: str, expected: list[float]) -> None:
    reward = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    actual = group_advantage(reward, torch.tensor([4, 4, 4, 4, 9]), kind=kind, preset=preset)
    assert actual.tolist() == pytest.approx(expected, rel=1e-14)


def test_an_ungraded_response_by_hand() -> None:
    reward, group = torch.tensor([1.0, 0.0, NAN], dtype=torch.float64), torch.tensor([0, 0, 0])
    left_out = group_advantage(reward, group, kind="dr-grpo")
    counted_as_zero = group_advantage(reward, group, kind="dr-grpo", preset="verl")
    assert left_out.tolist() == [0.5, -0.5, 0.0]
    assert counted_as_zero.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3], rel=1e-14)


def test_epsilon_overrides_the_preset() -> None:
    reward, group = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    assert grpo_advantage(reward, group, preset="trl", epsilon=0.25).tolist() == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], rel=1e-14)
    assert grpo_advantage(reward, group, epsilon=0.0).tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-14)


@pytest.mark.parametrize("preset", PRESETS)
def test_rounding_is_no_spread(preset: str) -> None:
    """Two ways to 0.9 differ by one float32 rounding, which a division by epsilon would make a signal of 4 %."""
    reward = torch.tensor([0.8, 0.9]) + torch.tensor([0.1, 0.0])
    assert reward[0] != reward[1]
    assert group_advantage(reward, torch.tensor([0, 0]), preset=preset).tolist() == [0.0, 0.0]

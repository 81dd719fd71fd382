"""Where float32 rounding once leaked into results: equal rewards, distant groups, offset logits."""

import pytest
import torch

from tokencredit.advantage import group_advantage
from tokencredit.kernels import token_statistics


@pytest.mark.parametrize("size", [8, 16, 64])
def test_equal_float32_rewards_give_zero(size: int) -> None:
    for reward in (0.806, 0.895, 0.967):
        assert not group_advantage(torch.full((size,), reward), torch.zeros(size, dtype=torch.int64)).any()


def test_rewards_one_rounding_apart_are_equal() -> None:
    assert not group_advantage(torch.tensor([1.0400001, 1.04]), torch.tensor([0, 0])).any()


def test_a_distant_group_does_not_silence_another() -> None:
    reward = torch.tensor([0.0, 1.0, 0.0, 2e7], dtype=torch.float64)
    assert group_advantage(reward, torch.tensor([0, 0, 1, 1]))[1] > 0.7


def test_a_large_common_offset_changes_nothing() -> None:
    reward = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0])
    torch.testing.assert_close(group_advantage(reward + 1e7, group), group_advantage(reward, group), atol=1e-6, rtol=0)


@pytest.mark.parametrize("offset", [-30.0, -300.0, 100.0])
def test_entropy_of_offset_float32_logits(offset: float) -> None:
    logits = torch.randn(1000, 50) * 2 + offset
    exact = torch.distributions.Categorical(logits=logits.double()).entropy()
    measured = token_statistics(logits, torch.zeros(1000, dtype=torch.int64)).entropy
    assert (measured >= 0).all()
    assert (measured - exact).abs().max() < 1e-4


def test_an_impossible_token_adds_nothing_to_the_entropy() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf]])
    expected = torch.distributions.Categorical(logits=torch.tensor([0.0, 1.0])).entropy()
    assert float(token_statistics(logits, torch.tensor([1])).entropy) == pytest.approx(float(expected), abs=1e-6)

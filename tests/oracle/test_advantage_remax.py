"""ReMax, power with delta and C-RF by the verifier's score, against loops over responses in plain floats."""

import math
from random import Random
from typing import NamedTuple

import pytest
import torch

from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.advantage.group import remax_advantage
from tokencredit.config.train import METHODS

NAN = math.nan
SEEDS = range(6)


class Batch(NamedTuple):
    scores: list[float]
    """The verifier's."""
    rewards: list[float]
    """Shaped: a penalty or a bonus on top, often enough to cross 0."""
    groups: list[int]
    greedy: list[float]
    """One for every prompt, repeated on its responses."""

    def inputs(self, dtype: torch.dtype = torch.float64) -> AdvantageInputs:
        reward, score, greedy = (torch.tensor(values, dtype=dtype) for values in (self.rewards, self.scores, self.greedy))
        return AdvantageInputs(reward, torch.tensor(self.groups), score=score, greedy_score=greedy)


def random_batch(seed: int) -> Batch:
    """Scattered groups of all sizes, ungraded responses, a prompt whose greedy response could not be graded, a lone response."""
    random = Random(seed)
    groups = [random.choice([-5, 0, 3, 900]) for _ in range(random.randrange(12, 40))] + [77]
    scores = [NAN if random.random() < 0.2 else random.choice([0.0, 0.0, 1.0, random.gauss(0, 1)]) for _ in groups[:-1]] + [0.75]
    rewards = [score + random.choice([0.0, -1.5, 1.25, random.gauss(0, 1)]) for score in scores]
    prompt_scores = {-5: 0.0, 0: 1.0, 3: NAN, 900: random.gauss(0, 1), 77: 0.25}
    return Batch(scores, rewards, groups, [prompt_scores[group] for group in groups])


def ours(kind: str, batch: Batch, dtype: torch.dtype = torch.float64, **options) -> list[float]:
    return ADVANTAGES[kind](batch.inputs(dtype), {"kept": 1}, **options).advantage.tolist()


# --- ReMax


def naive_remax(batch: Batch) -> list[float]:
    advantages = []
    for reward, baseline in zip(batch.rewards, batch.greedy, strict=True):
        if math.isnan(reward) or math.isnan(baseline):
            advantages.append(0.0)
        else:
            advantages.append(reward - baseline)
    return advantages


@pytest.mark.parametrize("seed", SEEDS)
def test_remax_equals_the_naive_twin(seed: int) -> None:
    batch = random_batch(seed)
    expected = naive_remax(batch)
    assert any(expected)
    assert ours("remax", batch) == pytest.approx(expected, rel=1e-14)
    assert ours("remax", batch, torch.float32) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_remax_by_hand() -> None:
    """Two prompts, greedy right and greedy wrong; then one whose greedy response has no grade, and a response without one."""
    reward = torch.tensor([1.0, 0.0, 1.0, -0.5, 1.0, 0.0, NAN])
    greedy = torch.tensor([1.0, 1.0, 0.0, 0.0, NAN, NAN, 1.0])
    assert remax_advantage(reward, greedy).tolist() == [0.0, -1.0, 1.0, -0.5, 0.0, 0.0, 0.0]


def test_remax_keeps_the_precision_of_the_reward() -> None:
    """A greedy score of another precision does not change what the advantage is counted in."""
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert remax_advantage(third, third.float()).dtype == torch.float64
    assert remax_advantage(third.float(), third).dtype == torch.float32
    assert remax_advantage(third.float(), third).tolist() == [0.0]


def test_remax_remembers_nothing_and_says_what_it_needs() -> None:
    state = {"kept": 1}
    assert ADVANTAGES["remax"](random_batch(0).inputs(), state).state is state
    assert METHODS["advantage"]["remax"].needs.keys() == {"greedy-scores"}


def test_remax_without_responses_or_without_a_grade() -> None:
    nothing = torch.zeros(0)
    assert remax_advantage(nothing, nothing).tolist() == []
    assert remax_advantage(torch.tensor([NAN, NAN]), torch.tensor([NAN, 1.0])).tolist() == [0.0, 0.0]


def test_remax_refuses_an_infinite_reward() -> None:
    with pytest.raises(ValueError, match="reward is infinite at 1 of 2 responses"):
        remax_advantage(torch.tensor([math.inf, 0.0]), torch.tensor([0.0, 0.0]))


# --- power with delta


def naive_power(batch: Batch, *, alpha: float, delta: float, constant: float) -> list[float]:
    advantages = []
    for own, group in zip(batch.rewards, batch.groups, strict=True):
        siblings = [r for r, other in zip(batch.rewards, batch.groups, strict=True) if other == group and not math.isnan(r)]
        if math.isnan(own) or len(siblings) < 2:
            advantages.append(0.0)
            continue
        centre = math.fsum(siblings) / len(siblings)
        unsolved = max(0.0, 1 - centre)
        weight = constant * (unsolved ** (alpha - 1) if unsolved > 0 or alpha == 1 else 0.0)
        advantages.append(weight * (own - centre) * (1 / delta if own < centre else 1.0))
    return advantages


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("delta", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_power_with_delta_equals_the_naive_twin(alpha: float, delta: float, seed: int) -> None:
    batch = random_batch(seed)
    expected = naive_power(batch, alpha=alpha, delta=delta, constant=1.0)
    assert any(value > 0 for value in expected)
    assert any(value < 0 for value in expected)
    assert ours("power", batch, alpha=alpha, delta=delta) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    peak_at = 1 / (1 + alpha)
    expected = naive_power(batch, alpha=alpha, delta=delta, constant=0.25 / (peak_at * (1 - peak_at) ** alpha))
    assert ours("power", batch, alpha=alpha, delta=delta, scale="peak") == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_power_with_delta_by_hand() -> None:
    """One success in four, so a weight of 3/4 at alpha 2; failures count double at delta 1/2 and half at delta 2."""
    batch = Batch([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [4] * 4, [0.0] * 4)
    for delta, failure in ((1.0, -0.1875), (0.5, -0.375), (2.0, -0.09375)):
        assert ours("power", batch, delta=delta) == [0.5625, failure, failure, failure]


# --- C-RF by the score


def naive_c_rf(batch: Batch, *, threshold: float) -> list[float]:
    graded = [score for score in batch.scores if not math.isnan(score)]
    right = len([score for score in graded if score > threshold])
    wrong = len(graded) - right
    advantages = []
    for score in batch.scores:
        if math.isnan(score):
            advantages.append(0.0)
        elif score > threshold:
            advantages.append(len(graded) / (2 * right) if wrong else 1.0)
        else:
            advantages.append(-len(graded) / (2 * wrong) if right else -1.0)
    return advantages


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threshold", [0.0, 0.5, -9.0, 9.0])
def test_c_rf_goes_by_the_score_whatever_the_reward(threshold: float, seed: int) -> None:
    batch = random_batch(seed)
    graded = [pair for pair in zip(batch.scores, batch.rewards, strict=True) if not math.isnan(pair[0])]
    assert any((score > 0) != (reward > 0) for score, reward in graded)
    assert ours("c-rf", batch, threshold=threshold) == pytest.approx(naive_c_rf(batch, threshold=threshold), rel=1e-14)


def test_shaping_cannot_turn_a_failure_into_a_success_by_hand() -> None:
    """A bonus lifts both failures above the success, and a penalty pushes that below 0."""
    shaped = Batch([1.0, 0.0, 0.0], [-0.5, 0.5, 2.0], [0, 1, 2], [0.0] * 3)
    assert ours("c-rf", shaped) == [1.5, -0.75, -0.75]

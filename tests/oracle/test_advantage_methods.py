"""Batch-level, length-weighted and focal advantages against twins that write out every token and walk over every sibling."""

import inspect
import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple, get_args

import pytest
import torch

from tokencredit.advantage import ADVANTAGES, AdvantageInputs, group_advantage
from tokencredit.config import as_kwargs
from tokencredit.config.advantage import AdvantageChoice
from tokencredit.masked import best_sibling, group_statistics

NAN = math.nan
PRESETS = ("tokencredit", "trl", "verl")
EPSILON = {"tokencredit": 1e-6, "trl": 1e-4, "verl": 1e-6}


class Batch(NamedTuple):
    rewards: list[float]
    groups: list[int]
    mask: list[list[bool]]

    def inputs(self, dtype: torch.dtype = torch.float64) -> AdvantageInputs:
        """Nothing shaped: the score is the reward."""
        reward, length = torch.tensor(self.rewards, dtype=dtype), torch.tensor(self.mask).sum(-1)
        return AdvantageInputs(reward, torch.tensor(self.groups), length, score=reward)

    def read_by(self, preset: str) -> list[float]:
        return [0.0 if preset == "verl" and math.isnan(reward) else reward for reward in self.rewards]

    def siblings(self, i: int, rewards: list[float]) -> list[int]:
        return [j for j in range(len(rewards)) if self.groups[j] == self.groups[i] and not math.isnan(rewards[j])]


def random_batch(seed: int, *, rewards: tuple[float, ...] | None = None) -> Batch:
    """Scattered groups of all sizes, masks with holes, responses without tokens, ungraded ones, a dead group, a lone response."""
    random = Random(seed)
    rows = random.randrange(12, 40)
    groups = [random.choice([-5, 0, 3, 4, 900]) for _ in range(rows)] + [77]

    def reward(group: int) -> float:
        if random.random() < 0.15:
            return NAN
        if group == 4:
            return 0.25
        return random.choice(rewards) if rewards else random.choice([0.0, 0.0, 1.0, random.gauss(0, 1)])

    mask = [[random.random() < 0.6 for _ in range(9)] for _ in groups]
    mask[1] = [False] * 9
    return Batch([reward(group) for group in groups[:-1]] + [0.75], groups, mask)


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def sample_variance(values: list[float]) -> float:
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def on_tokens(batch: Batch, values: list[float]) -> list[float]:
    """One entry for every loss token of the batch, walked one by one."""
    return [value for value, row in zip(values, batch.mask, strict=True) for keep in row if keep and not math.isnan(value)]


def naive_whitened(population: list[float], values: list[float], takes_part: list[bool], epsilon: float) -> list[float]:
    if len(population) < 2 or len(set(population)) == 1:
        return [0.0] * len(values)
    centre, spread = mean(population), math.sqrt(sample_variance(population) + epsilon)
    return [(v - centre) / spread if part and not math.isnan(v) else 0.0 for v, part in zip(values, takes_part, strict=True)]


def naive_reinforce_pp(batch: Batch, *, preset: str, over: str = "tokens", epsilon: float = 1e-8) -> list[float]:
    rewards = batch.read_by(preset)
    if over == "responses":
        return naive_whitened([r for r in rewards if not math.isnan(r)], rewards, [True] * len(rewards), epsilon)
    return naive_whitened(on_tokens(batch, rewards), rewards, [any(row) for row in batch.mask], epsilon)


def naive_reinforce_pp_baseline(batch: Batch, *, preset: str, epsilon: float = 1e-8) -> list[float]:
    rewards = batch.read_by(preset)
    centred = []
    for i, own in enumerate(rewards):
        siblings = batch.siblings(i, rewards)
        if math.isnan(own) or (len(siblings) < 2 and preset != "verl"):
            centred.append(NAN)
        else:
            centred.append(own - (mean([rewards[j] for j in siblings]) if len(siblings) > 1 else 0.0))
    return naive_whitened(on_tokens(batch, centred), centred, [any(row) for row in batch.mask], epsilon)


def naive_opo(batch: Batch, *, preset: str) -> list[float]:
    rewards = batch.read_by(preset)
    advantages = []
    for i, own in enumerate(rewards):
        siblings = batch.siblings(i, rewards)
        tokens = [rewards[j] for j in siblings for keep in batch.mask[j] if keep]
        if math.isnan(own):
            advantages.append(0.0)
        elif len(siblings) < 2:
            advantages.append(own if preset == "verl" else 0.0)
        else:
            advantages.append(own - mean(tokens) if tokens else 0.0)
    return advantages


def naive_gpg(batch: Batch, *, preset: str) -> list[float]:
    rewards = batch.read_by(preset)
    graded = [reward for reward in rewards if not math.isnan(reward)]
    boost = len(graded) / max(1, len([reward for reward in graded if reward != 0]))
    advantages = []
    for i, own in enumerate(rewards):
        siblings = batch.siblings(i, rewards)
        if math.isnan(own):
            advantages.append(0.0)
        elif len(siblings) < 2:
            advantages.append(boost * own if preset == "verl" else 0.0)
        else:
            advantages.append(boost * (own - mean([rewards[j] for j in siblings])))
    return advantages


def naive_pass_at_k(batch: Batch, *, preset: str, normalize: bool = True, epsilon: float | None = None) -> list[float]:
    rewards = batch.read_by(preset)
    advantages = [0.0] * len(rewards)
    for group in set(batch.groups):
        ranked = sorted(
            (j for j in range(len(rewards)) if batch.groups[j] == group and not math.isnan(rewards[j])), key=lambda j: -rewards[j]
        )
        if len(ranked) < 2 or rewards[ranked[0]] == rewards[ranked[1]]:
            continue
        lead = rewards[ranked[0]] - rewards[ranked[1]]
        std = math.sqrt(sample_variance([rewards[j] for j in ranked]))
        advantages[ranked[0]] = lead / (std + (EPSILON[preset] if epsilon is None else epsilon)) if normalize else lead
    return advantages


def naive_focal(batch: Batch, *, alpha: float, delta: float, constant: float = 1.0) -> list[float]:
    advantages = []
    for i, own in enumerate(batch.rewards):
        siblings = batch.siblings(i, batch.rewards)
        if math.isnan(own) or len(siblings) < 2 or len({batch.rewards[j] for j in siblings}) == 1:
            advantages.append(0.0)
            continue
        centre = mean([batch.rewards[j] for j in siblings])
        hard = max(0.0, 1 - centre)
        weight = constant * (hard ** (alpha - 1) if hard > 0 or alpha == 1 else 0.0)
        advantages.append(weight * (own - centre) / (delta if own < centre else 1.0))
    return advantages


def naive_c_rf(batch: Batch, *, threshold: float = 0.0) -> list[float]:
    graded = [reward for reward in batch.rewards if not math.isnan(reward)]
    good = len([reward for reward in graded if reward > threshold])
    bad = len(graded) - good
    plus = len(graded) / (2 * good) if good and bad else 1.0
    minus = len(graded) / (2 * bad) if good and bad else 1.0
    return [0.0 if math.isnan(r) else plus if r > threshold else -minus for r in batch.rewards]


WITH_PRESET: dict[str, Callable[..., list[float]]] = {
    "reinforce++": naive_reinforce_pp,
    "reinforce++-baseline": naive_reinforce_pp_baseline,
    "opo": naive_opo,
    "gpg": naive_gpg,
    "pass-at-k": naive_pass_at_k,
}


def ours(kind: str, batch: Batch, *, dtype: torch.dtype = torch.float64, **options) -> list[float]:
    return ADVANTAGES[kind](batch.inputs(dtype), {}, **options).advantage.tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", WITH_PRESET)
def test_equals_the_naive_twin(kind: str, preset: str, seed: int) -> None:
    batch = random_batch(seed)
    expected = WITH_PRESET[kind](batch, preset=preset)
    assert any(expected)
    assert ours(kind, batch, preset=preset) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert ours(kind, batch, preset=preset, dtype=torch.float32) == pytest.approx(expected, rel=2e-5, abs=2e-6)
    reward, group, length, *_ = batch.inputs()
    assert group_advantage(reward, group, kind=kind, preset=preset, length=length).tolist() == ours(kind, batch, preset=preset)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("reinforce++", {"over": "responses", "preset": "tokencredit"}),
        ("reinforce++", {"over": "responses", "preset": "verl", "epsilon": 0.5}),
        ("reinforce++", {"over": "tokens", "preset": "trl", "epsilon": 0.0}),
        ("reinforce++-baseline", {"preset": "tokencredit", "epsilon": 0.25}),
        ("pass-at-k", {"preset": "tokencredit", "normalize": False}),
        ("pass-at-k", {"preset": "trl", "epsilon": 0.5}),
    ],
)
def test_options_reach_the_formula(kind: str, options: dict, seed: int) -> None:
    batch = random_batch(seed)
    assert ours(kind, batch, **options) == pytest.approx(WITH_PRESET[kind](batch, **options), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rewards", "label"), [((0.0, 1.0), "binary"), (None, "any"), ((0.5, 1.0, 1.75), "above one")])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 2.75])
def test_static_probes_equal_the_naive_twin(alpha: float, rewards: tuple[float, ...] | None, label: str, seed: int) -> None:
    batch = random_batch(seed, rewards=rewards)
    peak_at = 1 / (1 + alpha)
    lifted = 1 / (4 * peak_at * (1 - peak_at) ** alpha)
    assert ours("power", batch, alpha=alpha) == pytest.approx(naive_focal(batch, alpha=alpha, delta=1.0), rel=1e-10, abs=1e-12)
    expected = naive_focal(batch, alpha=alpha, delta=1.0, constant=lifted)
    assert ours("power", batch, alpha=alpha, scale="peak") == pytest.approx(expected, rel=1e-10, abs=1e-12)
    expected = naive_focal(batch, alpha=1.0, delta=alpha)
    assert ours("asym", batch, delta=alpha) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.0, 0.5, -9.0, 9.0])
def test_c_rf_equals_the_naive_twin(threshold: float, seed: int) -> None:
    batch = random_batch(seed)
    assert ours("c-rf", batch, threshold=threshold) == pytest.approx(naive_c_rf(batch, threshold=threshold), rel=1e-14)


# --- by hand: one success in four, lengths 1, 2, 2, 3 (eight tokens, one of them rewarded); the fifth response is alone.

HAND = Batch([1.0, 0.0, 0.0, 0.0, 1.0], [4, 4, 4, 4, 9], [[True] * n + [False] * (3 - n) for n in (1, 2, 2, 3, 2)])


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        # Ten tokens, three of them 1: mean 3/10, variance (3 * 0.49 + 7 * 0.09) / 9 = 7/30.
        ("reinforce++", {"epsilon": 0.0}, [0.7 / math.sqrt(7 / 30), *[-0.3 / math.sqrt(7 / 30)] * 3, 0.7 / math.sqrt(7 / 30)]),
        # Five responses, two of them 1: mean 2/5, variance (2 * 0.36 + 3 * 0.16) / 4 = 3/10.
        ("reinforce++", {"over": "responses", "epsilon": 0.2}, [0.6 / math.sqrt(0.5), *[-0.4 / math.sqrt(0.5)] * 3, 0.6 / math.sqrt(0.5)]),
        # d is 3/4 on one token and -1/4 on seven: mean -1/8, variance (49/64 + 7/64) / 7 = 1/8.
        ("reinforce++-baseline", {"epsilon": 0.125}, [1.75, -0.25, -0.25, -0.25, 0.0]),
        ("opo", {}, [7 / 8, -1 / 8, -1 / 8, -1 / 8, 0.0]),
        ("opo", {"preset": "verl"}, [7 / 8, -1 / 8, -1 / 8, -1 / 8, 1.0]),
        ("gpg", {}, [2.5 * 0.75, -2.5 * 0.25, -2.5 * 0.25, -2.5 * 0.25, 0.0]),
        ("gpg", {"preset": "verl"}, [2.5 * 0.75, -2.5 * 0.25, -2.5 * 0.25, -2.5 * 0.25, 2.5]),
        ("pass-at-k", {"epsilon": 0.5}, [1.0, 0.0, 0.0, 0.0, 0.0]),
        ("pass-at-k", {"normalize": False, "preset": "verl"}, [1.0, 0.0, 0.0, 0.0, 0.0]),
        ("power", {}, [0.75 * 0.75, -0.25 * 0.75, -0.25 * 0.75, -0.25 * 0.75, 0.0]),
        # (27/16) p (1 - p)^2 is 1/4 at p = 1/3.
        ("power", {"scale": "peak"}, [27 / 16 * 0.75 * 0.75, *[27 / 16 * -0.25 * 0.75] * 3, 0.0]),
        ("asym", {}, [0.75, -0.5, -0.5, -0.5, 0.0]),
        ("c-rf", {}, [5 / 4, -5 / 6, -5 / 6, -5 / 6, 5 / 4]),
        ("c-rf", {"threshold": 1.0}, [-1.0, -1.0, -1.0, -1.0, -1.0]),
    ],
)
def test_one_success_in_four_by_hand(kind: str, options: dict, expected: list[float]) -> None:
    assert ours(kind, HAND, **options) == pytest.approx(expected, rel=1e-14)


# --- degenerate batches


DEGENERATE = {
    "one response": Batch([0.7], [0], [[True]]),
    "only groups of one": Batch([0.7, 0.7, 0.7], [0, 1, 2], [[True, True], [True, False], [True, True]]),
    "nothing graded": Batch([NAN, NAN, NAN], [0, 0, 1], [[True]] * 3),
    "one value": Batch([0.1] * 7, [0, 0, 0, 1, 1, 1, 2], [[True, i % 2 == 0, i % 3 == 0] for i in range(7)]),
    "all solved": Batch([1.0] * 6, [0, 0, 0, 1, 1, 1], [[True]] * 6),
    "solved but for rounding": Batch([0.1 * 3 + 0.7] * 3, [0, 0, 0], [[True]] * 3),
}
"""Nothing to compare, or nobody to compare it with."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", DEGENERATE)
@pytest.mark.parametrize("kind", [kind for kind in ADVANTAGES if kind != "c-rf"])
def test_a_batch_without_a_comparison_gives_zero(kind: str, batch: str, dtype: torch.dtype) -> None:
    """At the settings that would blow a rounding error up the most; the greedy responses have the same value."""
    options = {"epsilon": 0.0} if kind in ("grpo", "reinforce++", "reinforce++-baseline", "pass-at-k") else {}
    options = {"alpha": 0.01} if kind == "power" else options
    inputs = DEGENERATE[batch].inputs(dtype)
    actual = ADVANTAGES[kind](inputs._replace(entropy=1.0, greedy_score=inputs.reward), {}, **options).advantage
    assert actual.abs().max() < 1e-15


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", ["reinforce++", "reinforce++-baseline", "opo"])
def test_a_batch_without_a_token_gives_zero_where_tokens_are_counted(kind: str, preset: str) -> None:
    assert ours(kind, Batch([0.1, 0.7, 0.3], [0, 0, 0], [[False]] * 3), preset=preset) == [0.0, 0.0, 0.0]


def test_c_rf_without_a_graded_response_gives_zero() -> None:
    assert ours("c-rf", DEGENERATE["nothing graded"]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_no_response_gives_no_advantage(kind: str) -> None:
    nothing = torch.zeros(0)
    inputs = AdvantageInputs(nothing, nothing.long(), nothing.long(), score=nothing, entropy=1.0, greedy_score=nothing)
    assert ADVANTAGES[kind](inputs, {}).advantage.tolist() == []


@pytest.mark.parametrize("kind", ["grpo", "reinforce++", "reinforce++-baseline", "pass-at-k"])
def test_rounding_is_no_spread_where_something_is_divided_by_it(kind: str) -> None:
    """0.8 + 0.1 and 0.9 are one float32 rounding apart; divided by their spread they would be a signal of size 1."""
    reward = torch.tensor([0.8, 0.9, 0.9, 0.8]) + torch.tensor([0.1, 0.0, 0.0, 0.1])
    assert reward[0] != reward[1]
    inputs = AdvantageInputs(reward, torch.tensor([0, 0, 1, 1]), torch.tensor([3, 1, 2, 5]))
    assert ADVANTAGES[kind](inputs, {}, epsilon=0.0).advantage.tolist() == [0.0] * 4


def test_tiny_rewards_keep_their_spread_in_float32() -> None:
    """Their variance, 1e-50, is below the smallest float32."""
    inputs = AdvantageInputs(torch.tensor([1e-25, 0.0, 0.0, 1e-25]), torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 1, 1]))
    expected = [math.sqrt(3) / 2, -math.sqrt(3) / 2, -math.sqrt(3) / 2, math.sqrt(3) / 2]
    for kind in ("reinforce++", "reinforce++-baseline"):
        assert ADVANTAGES[kind](inputs, {}, epsilon=0.0).advantage.tolist() == pytest.approx(expected, rel=1e-6)


def test_a_response_without_tokens_gets_nothing_where_tokens_are_whitened() -> None:
    """Its reward lies far outside the two close ones, and would be whitened to a thousand times theirs."""
    inputs = AdvantageInputs(torch.tensor([1.0, 1.001, -1.0]), torch.tensor([0, 0, 0]), torch.tensor([4, 4, 0]))
    assert ADVANTAGES["reinforce++"](inputs, {}).advantage[2] == 0
    assert ADVANTAGES["reinforce++-baseline"](inputs, {}).advantage[2] == 0
    assert ADVANTAGES["reinforce++"](inputs, {}, over="responses").advantage[2] < -1


# --- the reductions


@pytest.mark.parametrize("seed", range(5))
def test_group_statistics_with_repeats_are_those_of_the_repeated_values(seed: int) -> None:
    batch = random_batch(seed)
    value, group, length, *_ = batch.inputs()
    assert length is not None
    actual = group_statistics(value, group, length)
    for row, name in enumerate(batch.groups):
        tokens = [batch.rewards[j] for j in range(len(value)) if batch.groups[j] == name for keep in batch.mask[j] if keep]
        tokens = [reward for reward in tokens if not math.isnan(reward)]
        assert float(actual.graded[row]) == len(tokens)
        assert float(actual.mean[row]) == pytest.approx(mean(tokens) if tokens else 0.0, rel=1e-12, abs=1e-14)
        spread = math.sqrt(sample_variance(tokens)) if len(tokens) > 1 else 0.0
        assert float(actual.std[row]) == pytest.approx(spread, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_best_sibling_by_looking_at_every_other(seed: int) -> None:
    batch = random_batch(seed, rewards=(0.0, 1.0, -2.0))
    value, group, *_ = batch.inputs()
    actual = best_sibling(value, group).tolist()
    for row in range(len(value)):
        others = [batch.rewards[j] for j in range(len(value)) if j != row and batch.groups[j] == batch.groups[row]]
        assert actual[row] == max([reward for reward in others if not math.isnan(reward)], default=-math.inf)


# --- the table and the door


@pytest.mark.parametrize("choice", get_args(AdvantageChoice), ids=lambda choice: choice.model_fields["type"].default)
def test_every_choice_has_a_row_whose_defaults_are_its_own(choice) -> None:
    signature = inspect.signature(ADVANTAGES[choice().type])
    given = {name: p.default for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert given == as_kwargs(choice())


def test_the_table_holds_nothing_that_cannot_be_chosen() -> None:
    assert list(ADVANTAGES) == [choice().type for choice in get_args(AdvantageChoice)]


THREE, GROUP, LENGTH = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 1]), torch.tensor([2, 3, 1])


@pytest.mark.parametrize("kind", ["reinforce++", "reinforce++-baseline", "opo"])
def test_a_missing_length_is_named(kind: str) -> None:
    with pytest.raises(ValueError, match="length is missing"):
        group_advantage(THREE, GROUP, kind=kind)


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_an_infinite_reward_is_refused(kind: str) -> None:
    reward = torch.tensor([1.0, math.inf, 0.5])
    with pytest.raises(ValueError, match="reward is infinite at 1 of 3 responses"):
        ADVANTAGES[kind](AdvantageInputs(reward, GROUP, LENGTH, reward if kind == "c-rf" else THREE, 1.0, THREE), {})

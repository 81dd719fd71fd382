"""FADE against a twin that keeps its running means in a plain dict and walks over every sibling, batch after batch."""

import json
import math
from random import Random
from typing import Any, NamedTuple

import pytest
import torch

from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.advantage.fade import fade_alpha, fade_delta

NAN = math.nan


class Batch(NamedTuple):
    scores: list[float]
    rewards: list[float]
    groups: list[int]
    entropy: float

    def inputs(self, dtype: torch.dtype = torch.float64) -> AdvantageInputs:
        return AdvantageInputs(
            torch.tensor(self.rewards, dtype=dtype),
            torch.tensor(self.groups),
            score=torch.tensor(self.scores, dtype=dtype),
            entropy=self.entropy,
        )


def batches(seed: int, count: int = 12) -> list[Batch]:
    """Scores of 0, 1 or none, shaped into other rewards; solve rate rising, entropy falling; one batch with no grade at all."""
    random = Random(seed)
    made = []
    for step in range(count):
        groups = [random.choice([0, 3, 8, -2]) for _ in range(14)] + [55]
        scores = [NAN if random.random() < 0.15 or step == 4 else float(random.random() < 0.1 + 0.07 * step) for _ in groups]
        rewards = [score - random.choice([0.0, 0.0, 0.25, 0.5]) for score in scores]
        made.append(Batch(scores, rewards, groups, 1.4 - 0.09 * step + random.uniform(-0.1, 0.1)))
    return made


class NaiveFade:
    """The published schedule with our readings: 2 % of the new batch first, then alpha and delta."""

    def __init__(self, *, alpha_max=3.0, delta_min=0.3, target_entropy=None, ema_new_weight=0.02, initial_solve_rate=0.5):
        self.alpha_max, self.delta_min, self.target, self.share = alpha_max, delta_min, target_entropy, ema_new_weight
        self.p, self.h, self.h0 = initial_solve_rate, None, None
        self.alpha = self.delta = NAN

    def step(self, batch: Batch) -> list[float]:
        graded = [score for score in batch.scores if not math.isnan(score)]
        if graded:
            rate = min(1.0, max(0.0, sum(graded) / len(graded)))
            self.p = self.p - self.share * self.p + self.share * rate
        if self.h is None:
            self.h = self.h0 = batch.entropy
        self.h = self.h - self.share * self.h + self.share * batch.entropy
        target = self.h0 / 2 if self.target is None else self.target
        self.alpha = self.alpha_max if self.p == 0 else max(1.0, min(self.alpha_max, 3 * (1 - self.p) / (2 * self.p)))
        self.delta = max(self.delta_min, min(1.0, 1 + self.h - target))
        advantages = []
        for i, own in enumerate(batch.rewards):
            siblings = [r for r, g in zip(batch.rewards, batch.groups, strict=True) if g == batch.groups[i] and not math.isnan(r)]
            if math.isnan(own) or len(siblings) < 2:
                advantages.append(0.0)
                continue
            centre = sum(siblings) / len(siblings)
            weight = max(0.0, 1 - centre) ** (self.alpha - 1)
            advantages.append(weight * (own - centre) / (self.delta if own < centre else 1.0))
        return advantages


SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "a target above the entropy": {"target_entropy": 1.6},
    "no memory": {"ema_new_weight": 1.0},
    "half and half, from nearly solved": {"ema_new_weight": 0.5, "initial_solve_rate": 0.9},
    "strong focus, low floor": {"alpha_max": 8.0, "delta_min": 0.05, "ema_new_weight": 0.4, "target_entropy": 2.0},
    "off": {"alpha_max": 1.0, "delta_min": 1.0},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("setting", SETTINGS)
def test_equals_the_naive_twin_batch_after_batch(setting: str, seed: int) -> None:
    twin, state = NaiveFade(**SETTINGS[setting]), {}
    for batch in batches(seed):
        expected = twin.step(batch)
        advantage, state = ADVANTAGES["fade"](batch.inputs(), json.loads(json.dumps(dict(state))), **SETTINGS[setting])
        assert advantage.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)
        assert state == pytest.approx(
            {"solve_rate": twin.p, "entropy": twin.h, "initial_entropy": twin.h0, "alpha": twin.alpha, "delta": twin.delta}, rel=1e-12
        )


def test_the_first_batch_by_hand() -> None:
    """Running rate p = 0.98 * 0.5 + 0.02 * 0.25 = 0.495, alpha = 1.5 * 0.505 / 0.495; H = H0 = 0.4, H* = 0.2, so delta is 1."""
    batch = Batch([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0, 0, 0, 0], 0.4)
    advantage, state = ADVANTAGES["fade"](batch.inputs(), {})
    alpha = 1.5 * 0.505 / 0.495
    assert state == pytest.approx({"solve_rate": 0.495, "entropy": 0.4, "initial_entropy": 0.4, "alpha": alpha, "delta": 1.0})
    weight = 0.75 ** (alpha - 1)
    assert advantage.tolist() == pytest.approx([0.75 * weight, *[-0.25 * weight] * 3])


def test_low_entropy_pushes_failures_by_hand() -> None:
    """A target of 0.8 over an entropy of 0.4: delta 0.6. Solved prompts need no focus: alpha 1."""
    batch = Batch([1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0, 0, 0, 0], 0.4)
    advantage, state = ADVANTAGES["fade"](batch.inputs(), {}, target_entropy=0.8, initial_solve_rate=0.9)
    assert (state["alpha"], state["delta"]) == pytest.approx((1.0, 0.6))
    assert advantage.tolist() == pytest.approx([0.5, 0.5, -0.5 / 0.6, -0.5 / 0.6])


@pytest.mark.parametrize(("rate", "alpha"), [(0.0, 3.0), (0.2, 3.0), (1 / 3, 3.0), (0.5, 1.5), (0.6, 1.0), (0.9, 1.0), (1.0, 1.0)])
def test_alpha_at_the_published_points(rate: float, alpha: float) -> None:
    assert fade_alpha(rate) == pytest.approx(alpha)


@pytest.mark.parametrize(("entropy", "delta"), [(2.0, 1.0), (1.0, 1.0), (0.75, 0.75), (0.3, 0.3), (0.25, 0.3), (0.0, 0.3)])
def test_delta_at_the_published_points(entropy: float, delta: float) -> None:
    assert fade_delta(entropy, 1.0) == pytest.approx(delta)


def test_the_solve_rate_is_the_score_not_the_shaped_reward() -> None:
    solved = Batch([1.0, 1.0], [-0.5, 0.25], [0, 0], 1.0)
    assert ADVANTAGES["fade"](solved.inputs(), {}, ema_new_weight=1.0).state["solve_rate"] == 1.0


@pytest.mark.parametrize(("scores", "rate"), [([2.0, 3.0], 1.0), ([-1.0, -2.0], 0.0), ([NAN, 1.0], 1.0), ([-1.0, 2.0], 0.5)])
def test_the_solve_rate_is_a_clipped_mean_of_graded_scores(scores: list[float], rate: float) -> None:
    state = ADVANTAGES["fade"](Batch(scores, scores, [0, 0], 1.0).inputs(), {}, ema_new_weight=1.0).state
    assert state["solve_rate"] == rate


def test_a_batch_without_a_grade_leaves_the_solve_rate() -> None:
    remembered = ADVANTAGES["fade"](Batch([1.0, 0.0], [1.0, 0.0], [0, 0], 1.0).inputs(), {}).state
    advantage, state = ADVANTAGES["fade"](Batch([NAN, NAN], [NAN, NAN], [0, 0], 0.5).inputs(), remembered)
    assert advantage.tolist() == [0.0, 0.0]
    assert state["solve_rate"] == remembered["solve_rate"]
    assert state["entropy"] == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"score": None}, "score is missing"), ({"entropy": None}, "entropy is None"), ({"entropy": NAN}, "entropy is nan")],
)
def test_what_fade_cannot_do_without_is_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ADVANTAGES["fade"](Batch([1.0, 0.0], [1.0, 0.0], [0, 0], 1.0).inputs()._replace(**change), {})

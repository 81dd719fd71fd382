"""The per-token objective against scalar twins: value and slope of every branch, token by token."""

import math
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tokencredit.objective import OBJECTIVES, TokenInputs, clipped_surrogate, kl_estimate, token_weight, with_kl
from tokencredit.objective.base import importance_ratio

LOG_RATIOS = (-30.0, -20.5, -19.5, -1.2, -0.3, -0.1, 0.0, 0.1, 0.22, 0.3, 1.2, 2.5, 19.5, 20.5, 30.0)
CREDITS = (-2.0, -0.5, 0.0, 0.5, 2.0)


class ValueAndSlope(NamedTuple):
    value: float
    slope: float


def naive_ratio(log_ratio: float) -> ValueAndSlope:
    if log_ratio > 20 or log_ratio < -20:
        return ValueAndSlope(math.exp(math.copysign(20, log_ratio)), 0.0)
    return ValueAndSlope(math.exp(log_ratio), math.exp(log_ratio))


def naive_surrogate(log_ratio: float, credit: float, low: float, high: float, dual: float | None) -> ValueAndSlope:
    ratio = naive_ratio(log_ratio)
    chosen = ValueAndSlope(ratio.value * credit, ratio.slope * credit)
    if credit > 0 and ratio.value > 1 + high:
        chosen = ValueAndSlope((1 + high) * credit, 0.0)
    if credit < 0 and ratio.value < 1 - low:
        chosen = ValueAndSlope((1 - low) * credit, 0.0)
    if dual is not None and credit < 0 and ratio.value > dual:
        chosen = ValueAndSlope(dual * credit, 0.0)
    return chosen


def naive_kl(kind: str, difference: float) -> ValueAndSlope:
    if kind == "k1":
        return ValueAndSlope(difference, 1.0)
    if kind == "k2":
        return ValueAndSlope(difference**2 / 2, difference)
    bounded = max(-20.0, min(20.0, difference))
    return ValueAndSlope(math.exp(-bounded) + bounded - 1, 1 - math.exp(-bounded) if bounded == difference else 0.0)


def assert_value_and_slope(value: Tensor, logp: Tensor, expected: list[ValueAndSlope]) -> None:
    (slope,) = torch.autograd.grad(value.sum(), logp)
    assert value.tolist() == pytest.approx([each.value for each in expected], rel=1e-12, abs=1e-14)
    assert slope.tolist() == pytest.approx([each.slope for each in expected], rel=1e-12, abs=1e-14)


def leaf(old_logp: Tensor, log_ratio: list[float]) -> Tensor:
    return (old_logp + torch.tensor(log_ratio, dtype=torch.float64)).requires_grad_()


def test_importance_ratio_stops_at_the_limit() -> None:
    old_logp = torch.zeros(len(LOG_RATIOS), dtype=torch.float64)
    logp = leaf(old_logp, list(LOG_RATIOS))
    assert_value_and_slope(importance_ratio(logp, old_logp), logp, [naive_ratio(log_ratio) for log_ratio in LOG_RATIOS])


def test_importance_ratio_never_overflows_float32() -> None:
    ratio = importance_ratio(torch.tensor([0.0, -1e6]), torch.tensor([-1e6, 0.0]))
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20)], rel=1e-6)


@pytest.mark.parametrize("dual", [None, 1.5, 3.0])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.9, 0.05), (1.0, 5.0)])
def test_clipped_surrogate(low: float, high: float, dual: float | None) -> None:
    cells = list(product(LOG_RATIOS, CREDITS))
    old_logp = torch.zeros(len(cells), dtype=torch.float64)
    logp = leaf(old_logp, [log_ratio for log_ratio, _ in cells])
    credit = torch.tensor([credit for _, credit in cells], dtype=torch.float64)
    surrogate = clipped_surrogate(logp, old_logp, credit, clip_low=low, clip_high=high, dual_clip=dual)
    assert_value_and_slope(surrogate, logp, [naive_surrogate(*cell, low, high, dual) for cell in cells])


def test_clipped_surrogate_by_hand() -> None:
    """Credit +1 and -1 at ratios 2, 1/2 and 4 with the band 0.8 to 1.28 and dual clip 3."""
    logp = torch.tensor([2.0, 2.0, 0.5, 0.5, 4.0, 4.0], dtype=torch.float64).log().requires_grad_()
    credit = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    surrogate = clipped_surrogate(logp, torch.zeros(6, dtype=torch.float64), credit, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    assert_value_and_slope(
        surrogate,
        logp,
        [ValueAndSlope(*pair) for pair in ((1.28, 0.0), (-2.0, -2.0), (0.5, 0.5), (-0.8, 0.0), (1.28, 0.0), (-3.0, 0.0))],
    )


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_estimate(kind: str) -> None:
    reference = torch.zeros(len(LOG_RATIOS), dtype=torch.float64)
    logp = leaf(reference, list(LOG_RATIOS))
    assert_value_and_slope(kl_estimate(logp, reference, kind=kind), logp, [naive_kl(kind, difference) for difference in LOG_RATIOS])


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "constant"])
def test_token_weight(aggregation: str) -> None:
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    # The third response is empty; the last one is longer than the columns shown here.
    length = torch.tensor([2.0, 3.0, 0.0, 8.0], dtype=torch.float64)
    expected = [[0.0] * 5 for _ in range(4)]
    for row in range(4):
        for column in range(5):
            if mask[row, column]:
                expected[row][column] = 1 / float(length[row]) if aggregation == "sequence-mean" else 1.0
    assert token_weight(mask, length, aggregation=aggregation).tolist() == expected


@pytest.mark.parametrize(("beta", "kind"), [(0.1, "k1"), (0.5, "k2"), (0.04, "k3")])
def test_objective_with_kl_is_the_negative_surrogate_plus_beta_kl(beta: float, kind: str) -> None:
    cells = [(0.3, 1.0, 0.2), (-0.4, -2.0, -0.7), (2.0, -1.0, 0.0), (0.05, 0.0, 1.5)]
    old_logp = torch.full((1, 4), -3.0, dtype=torch.float64)
    logp = (old_logp + torch.tensor([[cell[0] for cell in cells]], dtype=torch.float64)).requires_grad_()
    inputs = TokenInputs(
        logp=logp,
        old_logp=old_logp,
        credit=torch.tensor([[cell[1] for cell in cells]], dtype=torch.float64),
        mask=torch.ones(1, 4, dtype=torch.bool),
        group=torch.tensor([0]),
        reference_logp=logp.detach() - torch.tensor([[cell[2] for cell in cells]], dtype=torch.float64),
    )
    objective = with_kl(OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.28, dual_clip=3.0), beta=beta, estimator=kind)
    expected = []
    for log_ratio, credit, drift in cells:
        surrogate, divergence = naive_surrogate(log_ratio, credit, 0.2, 0.28, 3.0), naive_kl(kind, drift)
        expected.append(ValueAndSlope(-surrogate.value + beta * divergence.value, -surrogate.slope + beta * divergence.slope))
    loss = objective.token_loss(inputs, None)
    (slope,) = torch.autograd.grad(loss.sum(), logp)
    assert loss[0].tolist() == pytest.approx([each.value for each in expected], rel=1e-12)
    assert slope[0].tolist() == pytest.approx([each.slope for each in expected], rel=1e-12)

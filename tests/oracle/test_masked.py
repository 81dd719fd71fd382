"""The reductions against plain loops, with poison wherever the mask does not look."""

import math
import statistics
from fractions import Fraction

import pytest
import torch

from tokencredit.masked import group_statistics, masked_mean, masked_sum

NAN, INF = math.nan, math.inf
VALUE = [[1.5, NAN, -2.0], [INF, 0.25, 4.0]]
MASK = [[True, False, True], [False, True, True]]


def test_masked_sum_and_mean_with_their_gradients() -> None:
    total, count = Fraction(0), 0
    for values, keeps in zip(VALUE, MASK, strict=True):
        for value, keep in zip(values, keeps, strict=True):
            if keep:
                total, count = total + Fraction(value), count + 1
    mask = torch.tensor(MASK)
    for reduce, expected, slope in ((masked_sum, total, 1.0), (masked_mean, total / count, 1 / count)):
        value = torch.tensor(VALUE, dtype=torch.float64, requires_grad=True)
        reduced = reduce(value, mask)
        (gradient,) = torch.autograd.grad(reduced, value)
        assert reduced.item() == float(expected)
        assert gradient.tolist() == [[slope if keep else 0.0 for keep in keeps] for keeps in MASK]


def test_an_empty_mask_gives_zero_and_no_gradient() -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    for reduce in (masked_sum, masked_mean):
        value = torch.tensor(VALUE, dtype=torch.float64, requires_grad=True)
        reduced = reduce(value, mask)
        (gradient,) = torch.autograd.grad(reduced, value)
        assert reduced.item() == 0.0
        assert gradient.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        ([1.0, 2.0, 4.0, 8.0], [0, 0, 0, 0]),
        ([1.0, 5.0, -2.0, 5.5, 0.0, 7.0], [9, -4, 9, 30, -4, 9]),
        ([1.0, NAN, 3.0, NAN, NAN, 6.0], [0, 0, 0, 1, 1, 2]),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [2, 1, 2, 1, 0, 2]),
    ],
)
def test_group_statistics(values: list[float], groups: list[int]) -> None:
    actual = group_statistics(torch.tensor(values, dtype=torch.float64), torch.tensor(groups))
    for row, name in enumerate(groups):
        known = [Fraction(value) for value, other in zip(values, groups, strict=True) if other == name and not math.isnan(value)]
        assert float(actual.graded[row]) == len(known)
        assert float(actual.mean[row]) == pytest.approx(float(statistics.mean(known)) if known else 0.0, rel=1e-14)
        assert float(actual.std[row]) == pytest.approx(float(statistics.stdev(known)) if len(known) > 1 else 0.0, rel=1e-13)


def test_group_spread_survives_a_large_offset() -> None:
    """A one-pass variance, E[x^2] - E[x]^2, would lose every digit here."""
    values = [1e8 + 1, 1e8 + 2, 1e8 + 3]
    actual = group_statistics(torch.tensor(values, dtype=torch.float64), torch.tensor([6, 6, 6]))
    assert actual.std.tolist() == pytest.approx([1.0, 1.0, 1.0], rel=1e-12)

"""What is added to the score, against exact fractions and plain loops."""

from fractions import Fraction

import pytest
import torch

from tokencredit.shape import kl_penalty, overlong_penalty


def naive_overlong(length: int, max_length: int, buffer: Fraction, factor: Fraction) -> Fraction:
    width = buffer * max_length
    return min(Fraction(0), -factor * (length - (max_length - width)) / width)


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(1, 2), Fraction(0)])
@pytest.mark.parametrize(("max_length", "buffer"), [(20, Fraction(1, 4)), (48, Fraction(1, 8)), (7, Fraction(1)), (10, Fraction(1, 5))])
def test_overlong_penalty_at_every_length(max_length: int, buffer: Fraction, factor: Fraction) -> None:
    lengths = list(range(max_length + 4))
    actual = overlong_penalty(torch.tensor(lengths), max_length=max_length, buffer=float(buffer), factor=float(factor))
    expected = [float(naive_overlong(length, max_length, buffer, factor)) for length in lengths]
    assert actual.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_authors_numbers_by_hand() -> None:
    """20480 tokens with a buffer of 4096: free up to 16384, half way at 18432, the whole factor at the limit."""
    penalty = overlong_penalty(torch.tensor([1, 16384, 18432, 20480]), max_length=20480)
    assert penalty.tolist() == pytest.approx([0.0, 0.0, -0.5, -1.0], abs=1e-12)


def test_kl_penalty_sums_each_response_inside_the_mask() -> None:
    divergence = [[0.5, 0.25, float("nan")], [1.0, -0.5, 2.0], [3.0, float("inf"), 1.0]]
    mask = [[True, True, False], [True, True, True], [False, False, False]]
    expected = []
    for values, keeps in zip(divergence, mask, strict=True):
        total = 0.0
        for value, keep in zip(values, keeps, strict=True):
            if keep:
                total += value
        expected.append(-0.1 * total)
    actual = kl_penalty(torch.tensor(divergence, dtype=torch.float64), torch.tensor(mask), beta=0.1)
    assert actual.tolist() == pytest.approx(expected, rel=1e-14, abs=1e-15)


def test_kl_penalty_sends_no_gradient_to_the_policy() -> None:
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    penalty = kl_penalty(logp.square(), torch.tensor([[True, True]]), beta=0.5)
    (weight * penalty.sum()).backward()
    assert logp.grad is None
    assert weight.grad == -2.5

"""What must hold of stochastic rounding to bfloat16, and the wrong versions each law rejects."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from laws.harness import Edit, Law, for_all, law_tests_from_edits, loaded_with

DRAWS = 20_000
MODULE = "optim.optimizer"


def rounding_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with((MODULE,), edit)


SUM, SHAPE = "value.contiguous().view(torch.int32) + chance", "2**LOW_BITS, value.shape"
MUTANTS: dict[str, Edit] = {
    "round to nearest": Edit(MODULE, SUM, "value.contiguous().view(torch.int32) + 2**15"),
    "truncation": Edit(MODULE, SUM, "value.contiguous().view(torch.int32)"),
    "always up": Edit(MODULE, SUM, "value.contiguous().view(torch.int32) + (2**16 - 1)"),
    "up half as often": Edit(MODULE, SHAPE, "2**(LOW_BITS - 1), value.shape"),
    "up by as much as two": Edit(MODULE, SHAPE, "2**(LOW_BITS + 1), value.shape"),
    "one draw for all": Edit(MODULE, SHAPE, "2**LOW_BITS, (1,) * value.dim()"),
    "negative numbers the other way": Edit(
        MODULE, SUM, "value.contiguous().view(torch.int32) + chance.where(value > 0, 2**16 - 1 - chance)"
    ),
    "what is not finite is rounded too": Edit(MODULE, ".where(value.isfinite(), value.bfloat16())", ""),
    "chance from the global generator": Edit(MODULE, ", generator=generator)", ")"),
}
A_DRAW_TOO_MANY = Edit(MODULE, SHAPE, "2**LOW_BITS + 1, value.shape")
"""Met once in 65 537 draws: too rarely for a law."""


def rounded(implementation: Any, value: Tensor, seed: int = 0) -> Tensor:
    return implementation.stochastic_round(value, torch.Generator().manual_seed(seed))


def bits(value: Tensor) -> Tensor:
    return value.float().view(torch.int32).long()


def neighbours(number: float) -> tuple[float, float]:
    """The bfloat16 towards zero, or the number itself if it is one, and the next one away from zero."""
    (whole,) = struct.unpack("<I", struct.pack("<f", number))
    inner = whole & 0xFFFF0000
    return tuple(struct.unpack("<f", struct.pack("<I", found))[0] for found in (inner, inner + 0x10000))


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)
seeds = st.integers(0, 10**6)


@for_all(numbers, seeds)
def the_mean_is_the_value(implementation, number, seed):
    value = torch.full((DRAWS,), number)
    found = rounded(implementation, value, seed).double()
    inner, outer = neighbours(number)
    share = (number - inner) / (outer - inner)
    # Five standard errors, and five draws for shares so small that these are not yet a normal distribution's.
    allowed = 5 * (share * (1 - share) / DRAWS) ** 0.5 + 5 / DRAWS if share else 0.0
    assert abs(float(found.mean()) - number) <= allowed * abs(outer - inner)


@for_all(numbers, seeds)
def no_neighbour_is_passed_over(implementation, number, seed):
    value = torch.full((64,), number)
    found = rounded(implementation, value, seed)
    assert found.dtype == torch.bfloat16
    assert int((bits(found) - bits(value)).abs().max()) < 2**16
    assert bool((found.sign() * value.sign() >= 0).all())


@for_all(numbers)
def a_bfloat16_stays(implementation, number):
    value = torch.full((2_000,), number).bfloat16()
    assert torch.equal(rounded(implementation, value.float()), value)


@for_all(numbers, seeds)
def signs_are_alike(implementation, number, seed):
    value = torch.full((64,), number)
    assert torch.equal(rounded(implementation, -value, seed), -rounded(implementation, value, seed))


@for_all(st.integers(1, 2**23 - 1), seeds)
def what_is_not_finite_stays(implementation, payload, seed):
    infinities = torch.tensor([torch.inf, -torch.inf])
    assert torch.equal(rounded(implementation, infinities, seed), infinities.bfloat16())
    odd = torch.tensor([0x7F800000 + payload, 0x7F800000 + payload - 2**31, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    assert bool(rounded(implementation, odd, seed).isnan().all())


@for_all(seeds)
def every_number_has_a_draw_of_its_own_and_the_seed_decides(implementation, seed):
    value = torch.full((20, 50), 1 + 2.0**-8)
    found = rounded(implementation, value, seed)
    assert len(found.unique()) == 2
    assert torch.equal(found, rounded(implementation, value, seed))
    assert not torch.equal(found, rounded(implementation, value, seed + 1))


LAWS: dict[Law, tuple[str, ...]] = {
    the_mean_is_the_value: ("round to nearest", "truncation", "always up", "up half as often", "up by as much as two"),
    no_neighbour_is_passed_over: ("up by as much as two",),
    a_bfloat16_stays: ("up by as much as two",),
    signs_are_alike: ("negative numbers the other way",),
    what_is_not_finite_stays: ("what is not finite is rounded too",),
    every_number_has_a_draw_of_its_own_and_the_seed_decides: ("one draw for all", "chance from the global generator"),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(LAWS, rounding_with, MUTANTS)


@pytest.mark.parametrize("edit", [None, pytest.param(A_DRAW_TOO_MANY, marks=pytest.mark.mutants)], ids=["real", "a draw too many"])
def test_a_bfloat16_stays_in_a_million_draws(edit: Edit | None) -> None:
    """A draw of 2^16 itself would move one number in 65 537."""
    found = rounded(rounding_with(edit), torch.ones(10**6))
    assert bool((found == 1).all()) == (edit is None)


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.float64; stochastic rounding takes float32"):
        rounded(rounding_with(), torch.ones(2, dtype=torch.float64))

"""Kinds of failure and the choice of examples against numbers worked out by hand, slow loops, laws, and wrong twins that these reject."""

import math
from types import SimpleNamespace

import pytest
import torch

from laws.harness import Edit, loaded_with
from tokencredit.lab.credit.agreement import disagreement, failure, kinds, worst_to_typical
from tokencredit.lab.credit.quality import redrawn

CREDIT = torch.tensor([1.0, 1.0, 2.0, 0.0, -1.0, 3.0, -2.0, 1.0], dtype=torch.float64)
TRUTH = torch.tensor([0.0, 0.1, 0.3, -0.5, -0.2, -0.4, 0.2, 0.06], dtype=torch.float64)
ERROR = torch.tensor([0.0, 0.1, 0.1, 0.0, 0.1, 0.1, 0.05, 0.05], dtype=torch.float64)
"""In units of their errors: not measured, 1, 3, certain, 2, 4, 4, 1.2."""
KINDS = ["undecided", "undecided", "agreeing", "missed", "agreeing", "against", "against", "undecided"]
GROUP = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
ONCE = torch.ones(1, 2, dtype=torch.float64)
ALL = torch.ones(8, dtype=torch.bool)


def named(found: tuple[torch.Tensor, ...], names: tuple[str, ...]) -> list[list[str]]:
    return [[name for name, mask in zip(names, found, strict=True) if mask[at]] for at in range(len(found[0]))]


def kinds_by_hand(code: SimpleNamespace) -> None:
    found = code.kinds(CREDIT, TRUTH, ERROR.square())
    assert named(found, found._fields) == [[kind] for kind in KINDS]


def shares_by_hand(code: SimpleNamespace) -> None:
    found = code.failure(CREDIT, TRUTH, ERROR.square(), ALL, GROUP, ONCE)
    # |credit| is 11 in all: 1 + 1 + 1 on tokens near 0, 3 + 2 against, 2 + 1 with the truth. |A*| away from 0 is 1.6, and 0.5 is missed.
    assert [one.value for one in found] == pytest.approx([3 / 11, 5 / 11, 3 / 11, 0.5 / 1.6])
    later = code.failure(CREDIT, TRUTH, ERROR.square(), torch.arange(8) >= 4, GROUP, ONCE)
    assert [one.value for one in later] == pytest.approx([1 / 7, 5 / 7, 1 / 7, 0.0])


def both_by_hand(code: SimpleNamespace) -> None:
    kinds_by_hand(code)
    shares_by_hand(code)


def test_kinds_and_shares_by_hand() -> None:
    both_by_hand(SimpleNamespace(kinds=kinds, failure=failure))


MODULE = "lab.credit.agreement"
WRONG = {
    "a certain token decided": Edit(MODULE, "(truth != 0) & (truth.abs() >=", "(truth.abs() >="),
    "one standard error is enough": Edit(MODULE, "STANDARD_ERRORS = 2.0", "STANDARD_ERRORS = 1.0"),
    "variance taken for the error": Edit(MODULE, "variance.sqrt()", "variance", inside="significant"),
    "the sign of A* is left out": Edit(MODULE, "truth.abs() >= ", "truth >= "),
    "exactly two errors are not enough": Edit(MODULE, "truth.abs() >= ", "truth.abs() > "),
    "no credit counts as the wrong sign": Edit(MODULE, "decided & ~same & ~none", "decided & ~same"),
    "credit with its sign": Edit(MODULE, "credit.abs() * chosen", "credit * chosen"),
    "all tokens instead of the chosen": Edit(MODULE, "credit.abs() * chosen", "credit.abs()"),
    "A* of every token is due": Edit(MODULE, "(chosen & ~kind.undecided)", "chosen"),
    "what is missed as a share of credit": Edit(MODULE, "missed=due)", "missed=size)"),
}


@pytest.mark.mutants
@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_does_not_pass(mistake: str) -> None:
    with pytest.raises(AssertionError):
        both_by_hand(loaded_with([MODULE], WRONG[mistake]))


def test_laws_of_kinds() -> None:
    generator = torch.Generator().manual_seed(0)
    credit, truth = (torch.randn(60, generator=generator, dtype=torch.float64).round(decimals=1) for _ in range(2))
    variance = torch.rand(60, generator=generator, dtype=torch.float64) / 4
    group, times, everything = torch.arange(60) // 12, redrawn(5, draws=5, seed=1), torch.ones(60, dtype=torch.bool)
    found = failure(credit, truth, variance, everything, group, times)
    # The three parts of |credit| make up all of it.
    assert sum(one.value for one in found[:3]) == pytest.approx(1)
    # A recipe twice as loud fails in the same places.
    louder = failure(7 * credit, truth, variance, everything, group, times)
    assert [one.value for one in louder] == pytest.approx([one.value for one in found])
    # Turned round, what went against the truth goes with it.
    turned = failure(-credit, truth, variance, everything, group, times)
    assert (turned.against, turned.agreeing) == (pytest.approx(found.agreeing), pytest.approx(found.against))
    assert (turned.undecided, turned.missed) == (pytest.approx(found.undecided), pytest.approx(found.missed))
    # The truth itself never goes against itself and misses nothing.
    oracle = failure(truth, truth, variance, everything, group, times)
    assert (oracle.against.value, oracle.missed.value) == (0, 0)
    # An interval comes from prompts that are redrawn.
    assert found.against.low < found.against.value < found.against.high


def test_without_credit_or_decisions_nothing_can_be_told() -> None:
    found = failure(torch.zeros(4), TRUTH[:4], ERROR[:4].square(), ALL[:4], GROUP[:4], ONCE)
    assert math.isnan(found.undecided.value)
    assert found.missed.value == 1
    assert math.isnan(failure(CREDIT[:2], TRUTH[:2], ERROR[:2].square(), ALL[:2], GROUP[:2], ONCE).missed.value)


def test_disagreement_by_hand() -> None:
    truth = torch.tensor([[0.3, 0.4, 9.0], [0.3, 0.4, 9.0], [0.3, 0.4, 9.0], [0.0, 0.01, 0.0], [0.3, 0.4, 0.0]])
    credit = torch.tensor([[6.0, 8.0, 5.0], [-3.0, -4.0, 5.0], [1.0, 0.0, -5.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    known = torch.tensor([[True, True, False]]).expand(5, 3)
    found = disagreement(credit, truth, known, truth.abs() > 0.1).tolist()
    assert found[:3] == pytest.approx([0.0, 2.0, 1 - 0.6])
    assert math.isnan(found[3]), "no decisive token"
    assert math.isnan(found[4]), "no credit"
    only_unknown = disagreement(credit[:1], truth[:1], known[:1], torch.tensor([[False, False, True]]))
    assert math.isnan(float(only_unknown)), "the decisive token is not known"


def test_examples_go_from_the_worst_to_the_median() -> None:
    apart = torch.tensor([0.1, torch.nan, 0.9, 0.5, 0.7, 0.9, torch.nan, 0.3])
    # In order: rows 2 and 5 alike, 4, 3, 7, 0; of six the third is the median from above.
    assert worst_to_typical(apart, 1) == [2]
    assert worst_to_typical(apart, 2) == [2, 4]
    assert worst_to_typical(apart, 3) == [2, 5, 4]
    assert worst_to_typical(apart, 9) == [2, 5, 4], "no response twice"
    assert worst_to_typical(apart, 0) == []
    assert worst_to_typical(torch.full((3,), torch.nan), 2) == []
    assert worst_to_typical(torch.tensor([0.2]), 2) == [0]

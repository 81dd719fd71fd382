"""DelTA swept from stored features obeys its own laws and those of any DelTA, and every law rejects the wrong versions it names."""

from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given, settings

from laws.delta_cases import Case, Law, cases, typical_case
from laws.delta_cut_laws import law_groups_stand_alone_in_group_scope, law_responses_may_be_permuted, law_two_ranks_agree_with_one
from laws.delta_score_laws import (
    law_advantages_may_be_rescaled,
    law_an_empty_range_is_uniform_bit_for_bit,
    law_mean_is_one_in_every_scope,
    law_normalisation_divides_all_sides_by_one_number,
    law_one_side_alone_is_uniform,
    law_range_before_normalisation,
    law_sides_may_be_swapped,
)
from laws.delta_sweep_laws import SWEEP_LAWS
from laws.mutants_delta_sweeps import GENERAL, SWEEPS, always_swept, delta_with

REAL = delta_with()

GENERAL_LAWS: dict[Law, list[str]] = {
    law_mean_is_one_in_every_scope: [
        "zero advantage left out of the mean",
        "range starts at zero",
    ],
    law_normalisation_divides_all_sides_by_one_number: ["zero advantage left out of the mean"],
    law_range_before_normalisation: ["range starts at zero"],
    law_an_empty_range_is_uniform_bit_for_bit: ["mean of rounded coefficients"],
    law_one_side_alone_is_uniform: ["an empty side is discriminated"],
    law_advantages_may_be_rescaled: ["a floor that advantages meet"],
    law_sides_may_be_swapped: ["the positive temperature for both sides"],
    law_responses_may_be_permuted: ["rows are laid out as they come"],
    law_groups_stand_alone_in_group_scope: ["group scope pools the batch"],
    law_two_ranks_agree_with_one: [
        "each rank its own scopes",
        "each rank its own masses",
        "each rank its own direction",
        "each rank its own offset",
        "each rank its own temperature",
        "each rank its own mean",
    ],
}
PAIRS = [(law, mutant) for law, mutants in (GENERAL_LAWS | SWEEP_LAWS).items() for mutant in mutants]


def obey(law: Law, delta: SimpleNamespace, case: Case) -> None:
    law(always_swept(delta) if law in GENERAL_LAWS else delta, case)


@cache
def hold(law: Law) -> None:
    obey(law, REAL, typical_case())


@pytest.mark.parametrize("law", GENERAL_LAWS | SWEEP_LAWS, ids=lambda law: law.__name__)
@given(case=cases)
@settings(max_examples=6)
def test_the_code_obeys(law: Law, case: Case) -> None:
    obey(law, REAL, case)


@pytest.mark.parametrize(("law", "mutant"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_the_law_rejects(law: Law, mutant: str) -> None:
    wrong = delta_with((GENERAL | SWEEPS)[mutant])
    hold(law)
    with pytest.raises(AssertionError):
        obey(law, wrong, typical_case())


def test_every_mutant_is_rejected_by_a_law() -> None:
    assert {mutant for _, mutant in PAIRS} == GENERAL.keys() | SWEEPS.keys()
    assert len(GENERAL | SWEEPS) == len(GENERAL) + len(SWEEPS)

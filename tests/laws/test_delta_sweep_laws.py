"""DelTA swept from stored features obeys its own laws and those of any DelTA, and every law rejects the wrong versions it names."""

from types import SimpleNamespace

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
from laws.harness import law_tests_from_edits
from laws.mutants_delta_sweeps import GENERAL, SWEEPS, always_swept, delta_with

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
LAWS = GENERAL_LAWS | SWEEP_LAWS


def hold(law: Law, delta: SimpleNamespace, case: Case) -> None:
    law(always_swept(delta) if law in GENERAL_LAWS else delta, case)


def typically(law: Law, delta: SimpleNamespace) -> None:
    hold(law, delta, typical_case())


@given(case=cases)
@settings(max_examples=6)
def always(law: Law, delta: SimpleNamespace, case: Case) -> None:
    hold(law, delta, case)


def obey(law: Law, delta: SimpleNamespace) -> None:
    typically(law, delta)
    always(law, delta)


test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, delta_with, GENERAL, SWEEPS, obey=obey, reject=typically
)

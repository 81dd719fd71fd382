"""DelTA obeys every law for any batch, and every law rejects the wrong versions of the code it names."""

import pytest
from hypothesis import given

from laws.delta_cases import Case, Law, cases, typical_case
from laws.delta_cut_laws import CUT_LAWS
from laws.delta_proxy_laws import PROXY_LAWS
from laws.delta_score_laws import SCORE_LAWS
from laws.mutants_delta import CUTTING, PROXIES, SCORING, delta_with

REAL = delta_with()
LAWS = SCORE_LAWS | CUT_LAWS | PROXY_LAWS
MUTANTS = SCORING | CUTTING | PROXIES
PAIRS = [(law, mutant) for law, mutants in LAWS.items() for mutant in mutants]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@given(case=cases)
def test_the_code_obeys(law: Law, case: Case) -> None:
    law(REAL, case)


@pytest.mark.parametrize(("law", "mutant"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_the_law_rejects(law: Law, mutant: str) -> None:
    wrong = delta_with(MUTANTS[mutant])
    law(REAL, typical_case())
    with pytest.raises(AssertionError):
        law(wrong, typical_case())


def test_every_law_rejects_something_and_every_mutant_is_rejected() -> None:
    assert all(LAWS.values())
    assert {mutant for _, mutant in PAIRS} == MUTANTS.keys()
    assert len(MUTANTS) == len(SCORING) + len(CUTTING) + len(PROXIES)

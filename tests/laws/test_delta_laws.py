"""DelTA obeys every law for any batch, and every law rejects the wrong versions of the code it names."""

from types import SimpleNamespace

from hypothesis import given

from laws.delta_cases import Case, Law, cases, typical_case
from laws.delta_cut_laws import CUT_LAWS
from laws.delta_proxy_laws import PROXY_LAWS
from laws.delta_score_laws import SCORE_LAWS
from laws.harness import law_tests_from_edits
from laws.mutants_delta import CUTTING, PROXIES, SCORING, delta_with

LAWS = SCORE_LAWS | CUT_LAWS | PROXY_LAWS


def typically(law: Law, delta: SimpleNamespace) -> None:
    law(delta, typical_case())


@given(case=cases)
def always(law: Law, delta: SimpleNamespace, case: Case) -> None:
    law(delta, case)


def obey(law: Law, delta: SimpleNamespace) -> None:
    typically(law, delta)
    always(law, delta)


test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, delta_with, SCORING, CUTTING, PROXIES, obey=obey, reject=typically
)

"""The cases of every engine that verl can honour, and some of its own."""

from conformance.cases import CASES as EVERY
from conformance.cases import Case


def _honoured(case: Case) -> bool:
    """Not a temperature that workers would have to remember, nor a setting that only TRL has."""
    return case.recipe.get("credit", {}).get("temperature") != "first-batch" and not case.without_cut


CASES: dict[str, Case] = {name: case for name, case in EVERY.items() if _honoured(case)} | {
    "delta, a batch that must be filled up": Case({"recipe": "delta", "batching": {"type": "query-preserved"}}, groups=7),
    "dfpo, a batch that must be filled up": Case({"recipe": "dfpo"}, groups=7),
}


def file_of(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)

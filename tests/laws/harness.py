"""What all laws share: a law, a mutant made from the real source, and the tests that bring the two together.

A file of laws declares its table, law -> the mutants it must reject, and takes its three tests from `law_tests_from_edits` or
`law_tests_from_functions`: the code obeys every law, every law rejects its mutants (marked `mutants`: `make test-mutants`), and the
table is complete.
"""

import ast
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

Law = Callable[..., None]
Check = Callable[[Law, Any], None]
"""Brings a law and an implementation together; raises AssertionError where the law does not hold."""
Tests = tuple[Callable[..., None], Callable[..., None], Callable[..., None]]
"""test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete."""


def for_all(*strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], Law]:
    """Make `statement(implementation, *example)` a law: `law(implementation)` searches for an example that breaks it."""

    def decorate(statement: Callable[..., None]) -> Law:
        @wraps(statement)
        def law(implementation: Any, *, shrink: bool = True) -> None:
            # A mutant is searched for longer: examples vary with what else is imported, and one rare example must still be met.
            patience = {} if shrink else {"max_examples": 400}

            @settings(phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate], report_multiple_bugs=False, **patience)
            @given(st.tuples(*strategies))
            def search(example: tuple) -> None:
                statement(implementation, *example)

            search()

        return law

    return decorate


# --- mutants made from the real source: one place changed, loaded beside the real modules


class Edit(NamedTuple):
    module: str
    """Below the package: "credit.masks"."""
    right: str
    wrong: str
    inside: str | None = None
    """The function or class that holds the place, where the text stands in several."""


def edited(source: str, edit: Edit) -> str:
    """The source with the one place changed; a place that is not there, or there twice, is an error."""
    start, end = 0, len(source)
    if edit.inside is not None:
        (found,) = (node for node in ast.parse(source).body if getattr(node, "name", None) == edit.inside)
        lines = source.splitlines(keepends=True)
        start, end = (sum(map(len, lines[:line])) for line in (found.lineno - 1, found.end_lineno))
    part = source[start:end]
    if part.count(edit.right) != 1:
        raise ValueError(f"{edit.module} holds {edit.right!r} {part.count(edit.right)} times; a mutant needs it once")
    return source[:start] + part.replace(edit.right, edit.wrong) + source[end:]


def path_of(module: str) -> Path:
    return Path(str(importlib.import_module(f"tokencredit.{module}").__file__))


def loaded_with(modules: Sequence[str], edit: Edit | None = None) -> SimpleNamespace:
    """Every name of these modules, freshly executed in the order given, which must be that in which they import one another.

    Without an edit this is the code as it is; a law that holds for it must fail for the edited one.
    """
    if edit is not None and edit.module not in modules:
        raise ValueError(f"an edit of {edit.module} would change nothing; loaded are {', '.join(modules)}")
    names: dict[str, object] = {}
    # Imported before the patch, which would forget what they import: torch's libraries register once in a process.
    paths = {module: path_of(module) for module in modules}
    with mock.patch.dict(sys.modules):
        for module, path in paths.items():
            qualified = f"tokencredit.{module}"
            source = path.read_text()
            if edit is not None and edit.module == module:
                source = edited(source, edit)
            sys.modules[qualified] = ModuleType(qualified)
            exec(compile(source, path, "exec"), vars(sys.modules[qualified]))
            names |= vars(sys.modules[qualified])
    return SimpleNamespace(**names)


# --- the tests of a table of laws


def search(law: Law, implementation: Any) -> None:
    law(implementation)


def search_longer(law: Law, implementation: Any) -> None:
    law(implementation, shrink=False)


def law_tests_from_edits(
    laws: Mapping[Law, Collection[str]],
    load: Callable[[Edit | None], Any],
    *families: Mapping[str, Edit],
    obey: Check = search,
    reject: Check = search_longer,
) -> Tests:
    """Tests of laws whose mutants are edits of the source, named in one of the families.

    The table is complete when every law rejects something, every mutant is rejected, and every edit finds its place in the source.
    """
    edits = {name: edit for family in families for name, edit in family.items()}

    def check_edits() -> None:
        assert len(edits) == sum(map(len, families)), "two mutants have one name"
        for edit in edits.values():
            edited(path_of(edit.module).read_text(), edit)

    @cache
    def real() -> Any:
        return load(None)

    return _tests(laws, lambda law: real(), lambda name: load(edits[name]), edits, check_edits, obey, reject)


def law_tests_from_functions(
    laws: Mapping[Law, Collection[Callable[..., Any]]],
    real: Callable[[Law], Any],
    mutants: Collection[Callable[..., Any]],
    obey: Check = search,
    reject: Check = search_longer,
) -> Tests:
    """Tests of laws whose mutants are functions; `real` is the implementation that a law must hold for."""
    return _tests(laws, real, lambda mutant: mutant, mutants, lambda: None, obey, reject)


def functions_of(module: ModuleType, *helpers: Callable[..., Any]) -> set[Callable[..., Any]]:
    """The mutants that a module defines: its public functions but the helpers."""
    defined = {function for function in vars(module).values() if inspect.isfunction(function) and function.__module__ == module.__name__}
    return {function for function in defined - {*helpers} if not function.__name__.startswith("_")}


def name_of(value: Any) -> str:
    if isinstance(value, partial):
        return "-".join([value.func.__name__, *map(str, value.keywords.values())])
    return getattr(value, "__name__", value)


def _tests(
    laws: Mapping[Law, Collection[Any]],
    real: Callable[[Law], Any],
    wrong: Callable[[Any], Any],
    mutants: Collection[Any],
    check_mutants: Callable[[], None],
    obey: Check,
    reject: Check,
) -> Tests:
    pairs = [(law, mutant) for law, rejected in laws.items() for mutant in rejected]

    @pytest.mark.parametrize("law", laws, ids=name_of)
    def test_the_code_obeys(law: Law) -> None:
        obey(law, real(law))

    @pytest.mark.mutants
    @pytest.mark.parametrize(("law", "mutant"), pairs, ids=name_of)
    def test_the_law_rejects(law: Law, mutant: Any) -> None:
        implementation = wrong(mutant)
        with pytest.raises(AssertionError):
            reject(law, implementation)

    def test_the_table_is_complete() -> None:
        assert [name_of(law) for law, rejected in laws.items() if not rejected] == [], "a law that no mutant breaks proves nothing"
        assert [name_of(mutant) for mutant in mutants if mutant not in {mutant for _, mutant in pairs}] == [], "no law rejects these"
        assert [name_of(mutant) for _, mutant in pairs if mutant not in mutants] == [], "these mutants do not exist"
        assert [pair for pair, times in Counter(pairs).items() if times > 1] == []
        check_mutants()

    return test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete

"""Mutants made from the real source: one place changed, loaded beside the real modules. A place that has gone is an error, not a pass."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple
from unittest import mock


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


def loaded_with(modules: Sequence[str], edit: Edit | None = None) -> SimpleNamespace:
    """Every name of these modules, freshly executed in the order given, which must be that in which they import one another.

    Without an edit this is the code as it is; a law that holds for it must fail for the edited one.
    """
    if edit is not None and edit.module not in modules:
        raise ValueError(f"an edit of {edit.module} would change nothing; loaded are {', '.join(modules)}")
    names: dict[str, object] = {}
    # Imported before the patch, which would forget what they import: torch's libraries register once in a process.
    paths = {module: Path(str(importlib.import_module(f"tokencredit.{module}").__file__)) for module in modules}
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

"""Mutants made from the real source: one place changed, loaded beside the real modules. A place that has gone is an error, not a pass."""

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


def loaded_with(modules: Sequence[str], edit: Edit | None = None) -> SimpleNamespace:
    """Every name of these modules, freshly executed in the order given, which must be that in which they import one another.

    Without an edit this is the code as it is; a law that holds for it must fail for the edited one.
    """
    if edit is not None and edit.module not in modules:
        raise ValueError(f"an edit of {edit.module} would change nothing; loaded are {', '.join(modules)}")
    names: dict[str, object] = {}
    with mock.patch.dict(sys.modules):
        for module in modules:
            qualified = f"tokencredit.{module}"
            path = Path(str(importlib.import_module(qualified).__file__))
            source = path.read_text()
            if edit is not None and edit.module == module:
                if source.count(edit.right) != 1:
                    raise ValueError(f"{module} holds {edit.right!r} {source.count(edit.right)} times; a mutant needs it once")
                source = source.replace(edit.right, edit.wrong)
            sys.modules[qualified] = ModuleType(qualified)
            exec(compile(source, path, "exec"), vars(sys.modules[qualified]))
            names |= vars(sys.modules[qualified])
    return SimpleNamespace(**names)

"""Graders by name, and the two that compare text. `GRADERS` maps a name to the path of its function; only child processes import it.

A grader is a function of the gold answer and the response, with its knobs as keywords. It returns a finite number, or a
`Verdict` with the reason where it cannot grade. A `ConfigError` that it raises means that its knobs are wrong and stops the run.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.grade.protocol import Verdict, printable

Grader = Callable[..., float | Verdict]

GRADERS: dict[str, str] = {
    "exact": "tokencredit.grade.graders:grade_exact",
    "regex": "tokencredit.grade.graders:grade_regex",
    "math": "tokencredit.grade.math_answer:grade_math",
    "code": "tokencredit.grade.code:grade_code",
    "reasoning-gym": "tokencredit.grade.gym:grade_gym",
}


def grader_path(name: str) -> str:
    """`module:function` of a grader's name; a user's own `module:function` is returned unchanged."""
    path = GRADERS.get(name, name)
    module, colon, function = path.partition(":")
    if not (colon and module and function):
        raise ConfigError(f"grader {name!r} is not known; give one of {', '.join(GRADERS)}, or module:function of your own")
    return path


def find_grader(name: str, knobs: Mapping[str, Any]) -> Grader:
    """Import the grader and check that it takes these knobs before anything is graded."""
    module, _, attribute = grader_path(name).partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except BaseException as failure:
        raise ConfigError(f"grader {name!r} cannot be imported: {type(failure).__name__}: {printable(failure)}") from None
    try:
        inspect.signature(function).bind("gold", "response", **knobs)
    except (TypeError, ValueError) as failure:
        raise ConfigError(f"grader {name!r} cannot be called as (gold, response, {', '.join(knobs) or 'no knobs'}): {failure}") from None
    return function


def grade_exact(gold: str, response: str, *, fold_case: bool = False) -> float:
    """1 if response and gold answer are equal after stripping white space; `fold_case` also ignores case."""
    one, two = gold.strip(), response.strip()
    return float(one.casefold() == two.casefold() if fold_case else one == two)


def grade_regex(gold: str, response: str, *, pattern: str) -> float:
    """1 if the pattern's last match in the response is the gold answer, both stripped of white space; 0 without a match."""
    found = last_match(compiled(pattern), response)
    return float(found is not None and found.strip() == gold.strip())


@lru_cache(maxsize=8)
def compiled(pattern: str, field: str = "pattern") -> re.Pattern[str]:
    """The compiled pattern. ConfigError where it is no regular expression or has more than one group."""
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as problem:
        raise ConfigError(f"{field} is {pattern!r}, which is not a regular expression: {problem}") from None
    if expression.groups > 1:
        raise ConfigError(f"{field} is {pattern!r} with {expression.groups} groups; keep one and write the others as (?:...)")
    return expression


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The group of the last match, or the complete match where the pattern has no group; None without a match."""
    found = None
    for match in pattern.finditer(text):
        found = match[pattern.groups]
    return found

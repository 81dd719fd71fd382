"""Which grader is meant. `GRADERS` is the table: name -> where its function lives, imported in the child process alone.

A grader is a function of the gold answer and the response, with its knobs as keywords. It returns a finite number, or a
`Verdict` where it can say why it could not tell. `ConfigError` from it means its knobs are wrong and stops the run.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.grade.protocol import printable
from tokencredit.grade.verdict import Verdict

Grader = Callable[..., float | Verdict]

GRADERS: dict[str, str] = {
    "exact": "tokencredit.grade.text:grade_exact",
    "regex": "tokencredit.grade.text:grade_regex",
    "math": "tokencredit.grade.math_answer:grade_math",
    "code": "tokencredit.grade.code:grade_code",
    "reasoning-gym": "tokencredit.grade.gym:grade_gym",
}


def grader_path(name: str) -> str:
    """`module:function` of a grader's name; a path of one's own is taken as it is."""
    path = GRADERS.get(name, name)
    module, colon, function = path.partition(":")
    if not (colon and module and function):
        raise ConfigError(f"grader {name!r} is not known; give one of {', '.join(GRADERS)}, or module:function of your own")
    return path


def find_grader(name: str, knobs: Mapping[str, Any]) -> Grader:
    """Import it, and see that it takes these knobs before anything is graded."""
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

"""Values that come out of the sandbox: plain data, rebuilt here from a description. Nothing of the program's own comes along.

`asking.py` writes the description: a list of a tag and what belongs to it. Numbers travel as hexadecimal text, which keeps every bit and
costs linear time however large they are.

Questions to a program in the sandbox, and its answers as plain data.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.grade.sandbox import CodeLimits, Settled, run_program

_LARGEST_EXPONENT = 400
_LONGEST_RANGE = 1_000_000


class FailedError(Exception):
    """The assertion does not hold, and why: the program's answer is an exception, or nothing that could be compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A value that is no plain data (a match, a generator, a class of the program's own): it is true or false and equal to nothing."""

    kind: str
    true: bool

    def __bool__(self) -> bool:
        return self.true


class NoValueError(ValueError):
    """What came out is no description of a value."""


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    # Comparing 1e999999999 with an integer would build that integer.
    if value.is_finite() and abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise NoValueError(f"a decimal with exponent {value.adjusted()}")
    return value


def _range(*bounds: str) -> range:
    value = range(*(int(bound, 16) for bound in bounds))
    # A search for something that is no integer looks at every element.
    if len(value) > _LONGEST_RANGE:
        raise NoValueError(f"a range of {len(value)} numbers")
    return value


_LEAVES: Mapping[str, Callable[..., Any]] = {
    "none": lambda: None,
    "bool": bool,
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "str": str,
    "bytes": bytes.fromhex,
    "range": _range,
    "fraction": lambda above, below: Fraction(int(above, 16), int(below, 16)),
    "decimal": _decimal,
    "opaque": lambda kind, true: Opaque(str(kind), bool(true)),
}
_FOLDERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda flat: dict(zip(flat[::2], flat[1::2], strict=True)),
}


def rebuilt(description: Any) -> Any:
    """The value, or NoValueError. The description is somebody else's text: nothing about it is taken for granted."""
    try:
        return _rebuilt(description)
    except NoValueError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, ArithmeticError, RecursionError) as problem:
        raise NoValueError(f"{type(problem).__name__}: {problem}") from None


def _rebuilt(description: list[Any]) -> Any:
    tag, *parts = description
    if tag in _LEAVES:
        return _LEAVES[tag](*parts)
    return _FOLDERS[tag]([_rebuilt(part) for part in parts])


ASKING = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


class Told(NamedTuple):
    replies: list[Any]
    """Per question: plain data, or the FailedError that stands for it."""
    reason: str


def ask(
    questions: Sequence[str], *, program: str, setup: str, limits: CodeLimits, isolation: Settled, import_missing: bool = False
) -> Told:
    """`import_missing`: a question may name a module of the standard library that nothing imported."""
    given = json.dumps({"setup": setup, "program": program, "questions": list(questions), "import_missing": import_missing})
    end = run_program(ASKING, limits=limits, given=given, isolation=isolation)
    try:
        answers = json.loads(end.output)
        if not isinstance(answers, list) or len(answers) != len(questions):
            raise ValueError(f"{len(questions)} answers were expected")
    except (ValueError, RecursionError):
        said = end.errors.strip().splitlines()
        why = f"no answers came ({end.reason})" + (f": {said[-1]}" if said else "")
        return Told([FailedError(why) for _ in questions], why)
    return Told([_reply(answer) for answer in answers], end.reason)


def _reply(answer: Any) -> Any:
    try:
        kind, value = answer
        return rebuilt(value) if kind == "value" else FailedError(f"it raised {value}")
    except (NoValueError, ValueError, TypeError) as problem:
        return FailedError(str(problem))

"""Evaluate questions about a program in the sandbox and rebuild the answers as plain data. No object of the program's leaves it.

`inside.py` writes a description of each value: a list of a tag and the value's parts. Numbers are sent as hexadecimal text, which
keeps every bit and takes linear time however large they are.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.grade.sandbox import CodeLimits, Settled, run_program

INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
_LARGEST_EXPONENT = 400
_LONGEST_RANGE = 1_000_000


class FailedError(Exception):
    """Why an assertion does not hold: the program's answer is an exception, or cannot be compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A value that is not plain data (a match, a generator, an instance of the program's class): true or false, equal to nothing."""

    kind: str
    true: bool

    def __bool__(self) -> bool:
        return self.true


class NoValueError(ValueError):
    """The sandbox's output does not describe a value."""


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    # Comparing 1e999999999 with an integer would build that integer.
    if value.is_finite() and abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise NoValueError(f"a decimal with exponent {value.adjusted()}")
    return value


def _range(*bounds: str) -> range:
    value = range(*(int(bound, 16) for bound in bounds))
    # Testing whether a non-integer is in a range visits every element.
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
_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda flat: dict(zip(flat[::2], flat[1::2], strict=True)),
}


def rebuild(description: Any) -> Any:
    """The value, or NoValueError. The program may have written the description, so every part of it is checked."""
    try:
        return _rebuild(description)
    except NoValueError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, ArithmeticError, RecursionError) as problem:
        raise NoValueError(f"{type(problem).__name__}: {problem}") from None


def _rebuild(description: list[Any]) -> Any:
    tag, *parts = description
    if tag in _LEAVES:
        return _LEAVES[tag](*parts)
    return _CONTAINERS[tag]([_rebuild(part) for part in parts])


class Answers(NamedTuple):
    replies: list[Any]
    """Per question: plain data, or the FailedError that stands for it."""
    reason: str
    """How the process ended."""


def evaluate(
    questions: Sequence[str], *, program: str, setup: str, limits: CodeLimits, isolation: Settled, import_missing: bool = False
) -> Answers:
    """Evaluate the questions, expressions of Python, after running program and setup in the sandbox.

    `import_missing`: also import the modules of the standard library that the questions name.
    """
    given = json.dumps({"setup": setup, "program": program, "questions": list(questions), "import_missing": import_missing})
    end = run_program(INSIDE, limits=limits, given=given, isolation=isolation)
    try:
        answers = json.loads(end.output)
        if not isinstance(answers, list) or len(answers) != len(questions):
            raise ValueError(f"{len(questions)} answers were expected")
    except (ValueError, RecursionError):
        errors = end.errors.strip().splitlines()
        why = f"the program's process sent no answers ({end.reason})" + (f": {errors[-1]}" if errors else "")
        return Answers([FailedError(why) for _ in questions], why)
    return Answers([_reply(answer) for answer in answers], end.reason)


def _reply(answer: Any) -> Any:
    try:
        kind, value = answer
        return rebuild(value) if kind == "value" else FailedError(f"it raised {value}")
    except (NoValueError, ValueError, TypeError) as problem:
        return FailedError(str(problem))

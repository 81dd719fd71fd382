"""Judge a program's answers, in the grading process and over plain data only."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from tokencredit.grade.code.values import FailedError, Opaque

# Larger integers are compared but never used in arithmetic: the program chose them, and they could cost any amount of time.
_MOST_BITS = 4096


def _is_in(item: Any, container: Any) -> bool:
    return item in container


COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: _is_in,
    ast.NotIn: lambda item, container: not _is_in(item, container),
}
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
SIGNS: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


class Replies(NamedTuple):
    """Per question a value, or the FailedError that stands for it."""

    program: list[Any]
    expected: list[Any]


class Known(NamedTuple):
    value: Any

    def judge(self, replies: Replies) -> Any:
        return self.value


class Reply(NamedTuple):
    of: Literal["program", "expected"]
    number: int

    def judge(self, replies: Replies) -> Any:
        value = getattr(replies, self.of)[self.number]
        if isinstance(value, FailedError):
            raise value
        return value


class Either(NamedTuple):
    """`and`, `or`: the value of the first part that decides, or of the last one, as in Python."""

    stops_at: bool
    parts: "tuple[Judgement, ...]"

    def judge(self, replies: Replies) -> Any:
        value = None
        for part in self.parts:
            value = part.judge(replies)
            if bool(value) is self.stops_at:
                break
        return value


class Not(NamedTuple):
    part: "Judgement"

    def judge(self, replies: Replies) -> bool:
        return not self.part.judge(replies)


class Chain(NamedTuple):
    """`a < b < c`. Identity is meaningful for None, True and False only; other values are copies."""

    operators: tuple[Callable[[Any, Any], Any], ...]
    parts: "tuple[Judgement, ...]"

    def judge(self, replies: Replies) -> bool:
        values = [part.judge(replies) for part in self.parts]
        return all(compare(left, right) for compare, left, right in zip(self.operators, values[:-1], values[1:], strict=True))


class Applied(NamedTuple):
    function: Callable[..., Any]
    parts: "tuple[Judgement, ...]"

    def judge(self, replies: Replies) -> Any:
        values = [part.judge(replies) for part in self.parts]
        for value in values:
            if not isinstance(value, int | float | complex) or (isinstance(value, int) and value.bit_length() > _MOST_BITS):
                raise FailedError("arithmetic with a value that is not a number, or too large")
        return self.function(*values)


class Close(NamedTuple):
    left: "Judgement"
    right: "Judgement"
    named: "tuple[tuple[str, Judgement], ...]"

    def judge(self, replies: Replies) -> bool:
        return math.isclose(self.left.judge(replies), self.right.judge(replies), **{name: part.judge(replies) for name, part in self.named})


Judgement = Known | Reply | Either | Not | Chain | Applied | Close


def holds(judgement: Judgement, replies: Replies) -> bool:
    """An assertion that raises does not hold, as in Python."""
    try:
        value = judgement.judge(replies)
    except (FailedError, TypeError, ValueError, ArithmeticError, RecursionError):
        return False
    return value.true if isinstance(value, Opaque) else bool(value)

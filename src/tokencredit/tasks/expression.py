"""Arithmetic that a model wrote, read without ever being run: whole numbers, + - * / and parentheses, in exact fractions."""

import re
from fractions import Fraction
from typing import NamedTuple

LONGEST = 200
"""Characters; a longer expression is not read."""
BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
_PIECE = re.compile(r"[0-9]+|[-+*/()]|[ \t]+")
_NUMBER = re.compile(r"[0-9]+")


class Expression(NamedTuple):
    numbers: tuple[str, ...]
    """As they are written, in order."""
    value: Fraction


def read_expression(text: str) -> Expression | None:
    """None for what is no expression, is too long, or divides by zero. A sign of a single number is no operator: `-3+5` is not read."""
    pieces = _PIECE.findall(text) if len(text) <= LONGEST else []
    if not pieces or "".join(pieces) != text:
        return None
    words = [piece for piece in pieces if not piece.isspace()]
    value = _evaluate(words)
    return None if value is None else Expression(tuple(word for word in words if _NUMBER.fullmatch(word)), value)


def _evaluate(words: list[str]) -> Fraction | None:
    """Two stacks and no recursion, so that no nesting is too deep."""
    values: list[Fraction] = []
    waiting: list[str] = []
    number_next = True
    for word in words:
        opens = _NUMBER.fullmatch(word) is not None or word == "("
        if opens != number_next:
            return None
        if word == "(":
            waiting.append(word)
        elif word == ")":
            while waiting and waiting[-1] != "(":
                if not _apply(values, waiting.pop()):
                    return None
            if not waiting:
                return None
            waiting.pop()
        elif word in BINDS:
            while waiting and BINDS.get(waiting[-1], 0) >= BINDS[word]:
                if not _apply(values, waiting.pop()):
                    return None
            waiting.append(word)
            number_next = True
        else:
            values.append(Fraction(int(word)))
            number_next = False
    while not number_next and waiting and waiting[-1] != "(":
        if not _apply(values, waiting.pop()):
            return None
    return None if number_next or waiting else values[0]


def _apply(values: list[Fraction], operator: str) -> bool:
    right, left = values.pop(), values.pop()
    if operator == "/" and right == 0:
        return False
    values.append(
        left + right if operator == "+" else left - right if operator == "-" else left * right if operator == "*" else left / right
    )
    return True

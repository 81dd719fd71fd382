"""`countdown`: numbers and a target; the response is an expression that uses every number once and equals the target.

    Make 21 from the numbers 1, 4, 7: ...   ->   7*(4-1)

Every problem is built from an expression, so it has a solution; any other one is as right.

Arithmetic that a model wrote, read without ever being run: whole numbers, + - * / and parentheses, in exact fractions.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.tasks.protocol import Problem, Split
from tokencredit.tasks.split import draw_problems

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


ASKED = "Make {target} from the numbers {numbers}: each exactly once, with + - * / and parentheses. Write the expression only.\n"
ATTEMPTS = 10_000
"""Expressions tried for one target that is small enough."""
ATOM = max(BINDS.values()) + 1


class Term(NamedTuple):
    text: str
    value: int
    binds: int


def join(left: Term, operator: str, right: Term) -> Term | None:
    """With the parentheses it needs; None unless the value is a positive whole number."""
    value = {
        "+": left.value + right.value,
        "-": left.value - right.value,
        "*": left.value * right.value,
        "/": left.value // right.value if left.value % right.value == 0 else 0,
    }[operator]
    if value < 1:
        return None
    binds = BINDS[operator]
    one = left.text if left.binds >= binds else f"({left.text})"
    two = right.text if right.binds > binds or (right.binds == binds and operator in "+*") else f"({right.text})"
    return Term(f"{one}{operator}{two}", value, binds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown:
    """Difficulty dials: how many numbers, how large they and the target may be."""

    numbers: int = 3
    largest: int = 30
    target_largest: int = 100

    def make_problem(self, rng: Random) -> Problem:
        for _ in range(ATTEMPTS):
            given = [rng.randint(1, self.largest) for _ in range(self.numbers)]
            built = _build([Term(str(number), number, ATOM) for number in given], rng)
            if built is not None and built.value <= self.target_largest:
                # In order: the same numbers are one question, on one side of the split.
                return Problem(prompt=ASKED.format(target=built.value, numbers=", ".join(map(str, sorted(given)))), answer=built.text)
        raise ConfigError(
            f"task.target_largest is {self.target_largest}, which {self.numbers} numbers up to task.largest {self.largest} do not reach; "
            "raise it"
        )

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return draw_problems(self.make_problem, count, split=split, seed=seed)

    def grade(self, problem: Problem, response: str) -> float:
        """1 if the last line is an expression over the given numbers, each once, that equals the target; `= target` may follow it."""
        wanted = read_expression(problem.answer)
        written, equals, claimed = response.rstrip().rpartition("\n")[2].partition("=")
        found = read_expression(written.strip())
        if wanted is None or found is None or (equals and claimed.strip() != str(wanted.value)):
            return 0.0
        return float(sorted(found.numbers) == sorted(wanted.numbers) and found.value == wanted.value)

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return [_class_of(character) for character in response]

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        """The expression that the problem was built from."""
        return problem.answer


def _class_of(character: str) -> str:
    if character in BINDS:
        return "operator"
    return "number" if character in "0123456789" else "parenthesis" if character in "()" else "other"


def _build(terms: list[Term], rng: Random) -> Term | None:
    """Two terms become one until one is left."""
    while len(terms) > 1:
        left, right = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
        joined = join(left, rng.choice("+-*/"), right)
        if joined is None:
            return None
        terms.append(joined)
    return terms[0]

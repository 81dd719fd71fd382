"""`countdown`: the response is an expression that uses each given number once and equals the target.

    Make 21 from the numbers 1, 4, 7: ...   ->   7*(4-1)

Every problem is built from an expression, so it has a solution; any other solution is right too. The verifier parses the
model's expression and evaluates it in exact fractions; it never runs it as code.
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
"""Characters; a longer expression counts as none."""
BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
"""Operator -> precedence."""
_TOKEN = re.compile(r"[0-9]+|[-+*/()]|[ \t]+")
_NUMBER = re.compile(r"[0-9]+")


class Expression(NamedTuple):
    numbers: tuple[str, ...]
    """As written, in order."""
    value: Fraction


def read_expression(text: str) -> Expression | None:
    """Parse whole numbers, + - * / and parentheses. None if the text is no expression, too long, or divides by zero.

    A sign is not part of a number: `-3+5` is no expression.
    """
    pieces = _TOKEN.findall(text) if len(text) <= LONGEST else []
    if not pieces or "".join(pieces) != text:
        return None
    tokens = [piece for piece in pieces if not piece.isspace()]
    value = _evaluate(tokens)
    return None if value is None else Expression(tuple(token for token in tokens if _NUMBER.fullmatch(token)), value)


def _evaluate(tokens: list[str]) -> Fraction | None:
    """Two stacks instead of recursion, so that deep nesting cannot overflow the call stack."""
    values: list[Fraction] = []
    pending: list[str] = []
    number_next = True
    for token in tokens:
        opens = _NUMBER.fullmatch(token) is not None or token == "("
        if opens != number_next:
            return None
        if token == "(":
            pending.append(token)
        elif token == ")":
            while pending and pending[-1] != "(":
                if not _apply(values, pending.pop()):
                    return None
            if not pending:
                return None
            pending.pop()
        elif token in BINDS:
            while pending and BINDS.get(pending[-1], 0) >= BINDS[token]:
                if not _apply(values, pending.pop()):
                    return None
            pending.append(token)
            number_next = True
        else:
            values.append(Fraction(int(token)))
            number_next = False
    while not number_next and pending and pending[-1] != "(":
        if not _apply(values, pending.pop()):
            return None
    return None if number_next or pending else values[0]


def _apply(values: list[Fraction], operator: str) -> bool:
    """Replace the two topmost values by the result; False for a division by zero."""
    right, left = values.pop(), values.pop()
    if operator == "/" and right == 0:
        return False
    values.append(
        left + right if operator == "+" else left - right if operator == "-" else left * right if operator == "*" else left / right
    )
    return True


PROMPT = "Make {target} from the numbers {numbers}: each exactly once, with + - * / and parentheses. Write the expression only.\n"
ATTEMPTS = 10_000
"""Expressions drawn before the target limit counts as out of reach."""
ATOM = max(BINDS.values()) + 1


class Term(NamedTuple):
    text: str
    value: int
    binds: int


def join(left: Term, operator: str, right: Term) -> Term | None:
    """`left operator right` with the parentheses it needs; None unless the value is a positive whole number."""
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
    """Difficulty: how many numbers there are, and the largest number and target."""

    numbers: int = 3
    largest: int = 30
    target_largest: int = 100

    def make_problem(self, rng: Random) -> Problem:
        for _ in range(ATTEMPTS):
            given = [rng.randint(1, self.largest) for _ in range(self.numbers)]
            built = _build([Term(str(number), number, ATOM) for number in given], rng)
            if built is not None and built.value <= self.target_largest:
                # Sorted, so that the same numbers give the same prompt and stay in one split.
                return Problem(prompt=PROMPT.format(target=built.value, numbers=", ".join(map(str, sorted(given)))), answer=built.text)
        raise ConfigError(
            f"task.target_largest is {self.target_largest}, which {self.numbers} numbers up to task.largest {self.largest} do not reach; "
            "raise it"
        )

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return draw_problems(self.make_problem, count, split=split, seed=seed)

    def grade(self, problem: Problem, response: str) -> float:
        """1 if the last line is an expression that uses each given number once and equals the target; `= target` may follow it."""
        wanted = read_expression(problem.answer)
        written, equals, claimed = response.rstrip().rpartition("\n")[2].partition("=")
        found = read_expression(written.strip())
        if wanted is None or found is None or (equals and claimed.strip() != str(wanted.value)):
            return 0.0
        return float(sorted(found.numbers) == sorted(wanted.numbers) and found.value == wanted.value)

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return [_class_of(character) for character in response]

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        """The expression from which the problem was built."""
        return problem.answer


def _class_of(character: str) -> str:
    if character in BINDS:
        return "operator"
    return "number" if character in "0123456789" else "parenthesis" if character in "()" else "other"


def _build(terms: list[Term], rng: Random) -> Term | None:
    """Join two random terms until one is left; None if a join is not allowed."""
    while len(terms) > 1:
        left, right = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
        joined = join(left, rng.choice("+-*/"), right)
        if joined is None:
            return None
        terms.append(joined)
    return terms[0]

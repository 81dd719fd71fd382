"""`arithmetic`: one operation on two numbers of a chosen length.

    12 + 34 =   ->    46

The first line must be the answer alone: the verifier does not search longer text for it. The prompt has spaces because
language models have seen sums written with spaces.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tokencredit.errors import ConfigError
from tokencredit.tasks.protocol import Problem, Split
from tokencredit.tasks.split import draw_problems

OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Difficulty: the digits of each number, and the operator."""

    digits: int = 2
    operator: str = "+"

    def __post_init__(self) -> None:
        if self.operator not in OPERATIONS:
            raise ConfigError(f"task.operator is {self.operator!r}; it must be one of {', '.join(OPERATIONS)}")

    def make_problem(self, rng: Random) -> Problem:
        least = 10 ** (self.digits - 1) if self.digits > 1 else 0
        left, right = (rng.randrange(least, 10**self.digits) for _ in range(2))
        return Problem(prompt=f"{left} {self.operator} {right} =", answer=str(OPERATIONS[self.operator](left, right)))

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return draw_problems(self.make_problem, count, split=split, seed=seed)

    def grade(self, problem: Problem, response: str) -> float:
        """1 if the first line, stripped of white space, is the answer."""
        return float(response.partition("\n")[0].strip() == problem.answer)

    def token_class(self, problem: Problem, response: str) -> list[str]:
        first = len(response.partition("\n")[0])
        return ["answer"] * first + ["other"] * (len(response) - first)

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        return f" {problem.answer}"

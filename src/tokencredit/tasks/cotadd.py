"""`cotadd`: four-digit addition, answered directly or after a scratchpad that writes the sum backwards.

    1234+5678=   ->   06912            (direct)
    1234+5678=   ->   r21960;06912     (scratchpad)

The shipped base was trained on direct answers that forget every carry and, less often, on scratchpads that are right
(`demonstrate`, `HASTY`). RL discovers that the scratchpad pays, and responses grow longer.
"""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tokencredit.tasks.protocol import Problem, Split
from tokencredit.tasks.split import draw_problems

ALPHABET = "0123456789+=r;"


@dataclass(frozen=True, slots=True, kw_only=True)
class CotAdd:
    """Difficulty: the digits of each number."""

    digits: int = 4

    def make_problem(self, rng: Random) -> Problem:
        left, right = (rng.randrange(10**self.digits) for _ in range(2))
        return Problem(prompt=f"{left:0{self.digits}}+{right:0{self.digits}}=", answer=f"{left + right:0{self.digits + 1}}")

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return draw_problems(self.make_problem, count, split=split, seed=seed)

    def grade(self, problem: Problem, response: str) -> float:
        """1 if the text after the last `;` (without `;`: the whole response) is the sum, zero-padded."""
        return float(response.rsplit(";", 1)[-1] == problem.answer)

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        """The right response with a scratchpad."""
        return f"r{problem.answer[::-1]};{problem.answer}"

    def token_class(self, problem: Problem, response: str) -> list[str]:
        mark = response.find(";")
        if not response.startswith("r") or mark < 0:
            return ["answer"] * len(response)
        return ["preamble"] + ["scratch"] * (mark - 1) + ["separator"] + ["answer"] * (len(response) - mark - 1)


class Style(NamedTuple):
    """How the demonstrations for a warm start are written."""

    scratchpad_share: float
    forget_carry: float
    """Probability that a direct answer loses a carry."""


CAREFUL = Style(scratchpad_share=1.0, forget_carry=0.0)
HASTY = Style(scratchpad_share=0.25, forget_carry=1.0)


def add_forgetting(left: str, right: str, forget_carry: float, rng: Random) -> str:
    """Add digit by digit from the right; lose each carry with probability `forget_carry`."""
    digits: list[str] = []
    carry = 0
    for one, two in zip(reversed(left), reversed(right), strict=True):
        total = int(one) + int(two) + carry
        digits.append(str(total % 10))
        carry = int(total > 9 and rng.random() >= forget_carry)
    return str(carry) + "".join(reversed(digits))


def demonstrate(problem: Problem, style: Style, rng: Random) -> str:
    """A response in the given style: a direct answer may forget carries, a scratchpad is always right."""
    if rng.random() < style.scratchpad_share:
        return f"r{problem.answer[::-1]};{problem.answer}"
    left, right = problem.prompt.removesuffix("=").split("+")
    return add_forgetting(left, right, style.forget_carry, rng)

"""Demonstrations for `cotadd`: direct answers that forget carries, and scratchpads that never do."""

from random import Random
from typing import NamedTuple

from tokencredit.tasks.protocol import Problem


class Style(NamedTuple):
    scratchpad_share: float
    forget_carry: float
    """Probability that a direct answer loses a carry."""


CAREFUL = Style(scratchpad_share=1.0, forget_carry=0.0)
HASTY = Style(scratchpad_share=0.25, forget_carry=1.0)


def add_forgetting(left: str, right: str, forget_carry: float, rng: Random) -> str:
    """Digit by digit from the right; every carry is lost with probability `forget_carry`."""
    digits: list[str] = []
    carry = 0
    for one, two in zip(reversed(left), reversed(right), strict=True):
        total = int(one) + int(two) + carry
        digits.append(str(total % 10))
        carry = int(total > 9 and rng.random() >= forget_carry)
    return str(carry) + "".join(reversed(digits))


def demonstrate(problem: Problem, style: Style, rng: Random) -> str:
    if rng.random() < style.scratchpad_share:
        return f"r{problem.answer[::-1]};{problem.answer}"
    left, right = problem.prompt.removesuffix("=").split("+")
    return add_forgetting(left, right, style.forget_carry, rng)

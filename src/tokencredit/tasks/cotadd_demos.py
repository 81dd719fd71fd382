"""Demonstrations for `cotadd`: direct answers that forget carries, and fewer scratchpads that do not."""

from random import Random

from tokencredit.tasks.protocol import Problem


def add_forgetting(left: str, right: str, forget_carry: float, rng: Random) -> str:
    """Digit by digit from the right; every carry is lost with probability `forget_carry`."""
    digits: list[str] = []
    carry = 0
    for one, two in zip(reversed(left), reversed(right), strict=True):
        total = int(one) + int(two) + carry
        digits.append(str(total % 10))
        carry = int(total > 9 and rng.random() >= forget_carry)
    return str(carry) + "".join(reversed(digits))


def demonstrate(problem: Problem, rng: Random, *, scratchpad_share: float, forget_carry: float = 0.75) -> str:
    if rng.random() < scratchpad_share:
        return f"r{problem.answer[::-1]};{problem.answer}"
    left, right = problem.prompt.removesuffix("=").split("+")
    return add_forgetting(left, right, forget_carry, rng)

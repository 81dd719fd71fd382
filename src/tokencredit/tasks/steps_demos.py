"""Demonstrations for `steps` with chosen kinds of error: what the shipped base policies were warm-started on."""

from dataclasses import dataclass
from random import Random

from tokencredit.tasks.protocol import Problem
from tokencredit.tasks.steps import SEPARATORS, Steps, apply, chain_of, parse_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """How often a demonstration goes wrong. `wrong_sign` decides the regime: above one half the mode is wrong."""

    wrong_sign: float
    off_by_one_minus: float = 0.08
    off_by_one_carry: float = 0.25
    off_by_one_plus: float = 0.07
    miscopied_operand: float = 0.02
    random_answer: float = 0.05


SHARPEN = ErrorRates(wrong_sign=0.30)
SHIFT = ErrorRates(wrong_sign=0.52)
NO_ERRORS = ErrorRates(
    wrong_sign=0.0, off_by_one_minus=0.0, off_by_one_carry=0.0, off_by_one_plus=0.0, miscopied_operand=0.0, random_answer=0.0
)


def _result(left: int, op: str, right: int, rates: ErrorRates, rng: Random) -> int:
    if op == "-":
        if rng.random() < rates.wrong_sign:
            return apply(left, "+", right)
        slip = rates.off_by_one_minus
    else:
        slip = rates.off_by_one_carry if left + right > 9 else rates.off_by_one_plus
    offset = rng.choice((-1, 1)) if rng.random() < slip else 0
    return (apply(left, op, right) + offset) % 10


def continue_response(text: str, value: int, rest: list[tuple[str, int]], rates: ErrorRates, rng: Random) -> str:
    """Write the remaining steps after `text`, starting from `value`, then the answer."""
    for op, operand in rest:
        right = rng.randrange(10) if rng.random() < rates.miscopied_operand else operand
        result = _result(value, op, right, rates, rng)
        text += f"{value}{op}{right}={result}{rng.choice(SEPARATORS)}"
        value = result
    answer = rng.randrange(10) if rng.random() < rates.random_answer else value
    return f"{text}#{answer}"


def demonstrate(problem: Problem, rates: ErrorRates, rng: Random) -> str:
    start, chain = chain_of(problem.prompt)
    return continue_response(rng.choice("ab") + ":", start, chain, rates, rng)


def demonstrate_revision(task: Steps, problem: Problem, rates: ErrorRates, rng: Random, *, repair_rate: float = 0.6) -> tuple[str, str]:
    """(revision prompt, response). The response keeps a failed try up to its first broken step and goes on from there.

    With probability `repair_rate` it goes on without error; otherwise it errs at the base's own rates, so a
    revision is an attempt and not an oracle.
    """
    failed = demonstrate(problem, rates, rng)
    while task.grade(problem, failed) == 1.0:
        failed = demonstrate(problem, rates, rng)
    sibling = demonstrate(problem, rates, rng)
    start, chain = chain_of(problem.prompt)
    truth = task.step_truth(problem, failed)
    intact = truth.index(False) if False in truth else len(truth)
    written = parse_steps(failed)[:intact]
    # Cut where the first broken step begins: five characters are a step, separators before it are kept.
    kept = failed[: parse_steps(failed)[intact].at - 4] if intact < len(truth) else failed[: failed.index("#")]
    value = written[-1].result if written else start
    repaired = continue_response(kept, value, chain[intact:], NO_ERRORS if rng.random() < repair_rate else rates, rng)
    return task.revise(problem, failed, sibling), repaired

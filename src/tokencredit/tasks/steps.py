"""`steps`: a chain of additions and subtractions mod 10, worked out on a scratchpad.

    6+4-3-9-2=   ->   a:6+4=0;0-3=7,7-9=8;;8-2=6;#6

The verifier reads only the digit after `#`. The preamble (a or b) and the separators (; or , or ;;) are free
choices of format that deserve no credit; one wrong result makes every later one wrong. So the true credit of
every token is known and a credit method can be measured against it.

`demonstrate` writes responses with chosen error rates; the shipped base policies were warm-started on them.
"""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tokencredit.tasks.protocol import Problem, Split
from tokencredit.tasks.split import draw_problems

ALPHABET = "0123456789+-=:;,#ab?>"
SEPARATORS = (";", ",", ";;")


class Step(NamedTuple):
    """One `left op right = result` of a response; `at` is the character index of the result digit."""

    left: int
    op: str
    right: int
    result: int
    at: int


def apply(left: int, op: str, right: int) -> int:
    return (left + right if op == "+" else left - right) % 10


def chain_of(prompt: str) -> tuple[int, list[tuple[str, int]]]:
    """`6+4-3=` -> (6, [('+', 4), ('-', 3)])."""
    body = prompt.split("=", 1)[0]
    return int(body[0]), [(body[i], int(body[i + 1])) for i in range(1, len(body), 2)]


def _digit(text: str, at: int) -> int | None:
    return int(text[at]) if at < len(text) and text[at] in "0123456789" else None


def parse_steps(response: str) -> list[Step]:
    """Every well-formed step, in order, up to the first character that belongs to no step."""
    found: list[Step] = []
    at = 2 if response[:2] in ("a:", "b:") else 0
    while True:
        left, right, result = _digit(response, at), _digit(response, at + 2), _digit(response, at + 4)
        if left is None or right is None or result is None or response[at + 1] not in "+-" or response[at + 3] != "=":
            return found
        found.append(Step(left, response[at + 1], right, result, at + 4))
        at += 5
        while at < len(response) and response[at] in ";,":
            at += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Difficulty: the number of operations, and the share of subtractions (the shipped bases err there most)."""

    operations: int = 4
    subtract_share: float = 0.5

    @property
    def format_classes(self) -> frozenset[str]:
        return frozenset({"preamble", "separator"})

    def make_problem(self, rng: Random) -> Problem:
        value = rng.randrange(10)
        text = str(value)
        for _ in range(self.operations):
            op = "-" if rng.random() < self.subtract_share else "+"
            right = rng.randrange(10)
            text += f"{op}{right}"
            value = apply(value, op, right)
        return Problem(prompt=text + "=", answer=str(value))

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return draw_problems(self.make_problem, count, split=split, seed=seed)

    def grade(self, problem: Problem, response: str) -> float:
        """1 if the response ends in `#` and the right digit, else 0. The steps are not graded."""
        return float(response.endswith("#" + problem.answer))

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        """A response without errors."""
        return demonstrate(problem, NO_ERRORS, Random(f"{seed}/{problem.prompt}"))

    def token_class(self, problem: Problem, response: str) -> list[str]:
        """One of preamble, copy, operator, operand, result, separator, answer (or `other` where malformed)."""
        labels = ["other"] * len(response)
        start = 2 if response[:2] in ("a:", "b:") else 0
        labels[:start] = ["preamble"] * start
        for step in parse_steps(response):
            labels[step.at - 4 : step.at + 1] = ["copy", "operator", "operand", "operator", "result"]
        labels = ["separator" if label == "other" and char in ";," else label for label, char in zip(labels, response, strict=True)]
        mark = response.find("#")
        return labels if mark < 0 else labels[:mark] + ["answer"] * (len(response) - mark)

    def step_truth(self, problem: Problem, response: str) -> list[bool]:
        """For each written step: whether it is the right operation on the right operand, given the step before it.

        A step that continues correctly from a wrong value is right: only the step that broke the chain is False.
        """
        value, chain = chain_of(problem.prompt)
        truth: list[bool] = []
        for step, (op, right) in zip(parse_steps(response), chain, strict=False):
            truth.append((step.left, step.op, step.right, step.result) == (value, op, right, apply(value, op, right)))
            value = step.result
        return truth

    def step_starts(self, problem: Problem, response: str) -> list[int]:
        """The character offsets at which each written step and the answer begin."""
        starts = [step.at - 4 for step in parse_steps(response)]
        mark = response.find("#")
        return starts if mark < 0 else [*starts, mark]

    def revise(self, problem: Problem, failed: str, sibling: str) -> str:
        """The prompt for a revision: the problem, a failed response, and a sibling response."""
        return f"{problem.prompt}?{failed}?{sibling}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """Probabilities of each kind of error in a demonstration.

    `wrong_sign` decides the regime: above one half, the most likely result of a subtraction is wrong.
    """

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
    """Write the remaining steps after `text`, starting from `value`, and then the answer."""
    for op, operand in rest:
        right = rng.randrange(10) if rng.random() < rates.miscopied_operand else operand
        result = _result(value, op, right, rates, rng)
        text += f"{value}{op}{right}={result}{rng.choice(SEPARATORS)}"
        value = result
    answer = rng.randrange(10) if rng.random() < rates.random_answer else value
    return f"{text}#{answer}"


def demonstrate(problem: Problem, rates: ErrorRates, rng: Random) -> str:
    """A response to the problem with errors at the given rates."""
    start, chain = chain_of(problem.prompt)
    return continue_response(rng.choice("ab") + ":", start, chain, rates, rng)


def demonstrate_revision(task: Steps, problem: Problem, rates: ErrorRates, rng: Random, *, repair_rate: float = 0.6) -> tuple[str, str]:
    """(revision prompt, response). The response keeps a failed response up to its first broken step and continues from there.

    With probability `repair_rate` it continues without errors; otherwise it errs at `rates`, so that a revision is an
    attempt and not an oracle.
    """
    failed = demonstrate(problem, rates, rng)
    while task.grade(problem, failed) == 1.0:
        failed = demonstrate(problem, rates, rng)
    sibling = demonstrate(problem, rates, rng)
    start, chain = chain_of(problem.prompt)
    truth = task.step_truth(problem, failed)
    intact = truth.index(False) if False in truth else len(truth)
    written = parse_steps(failed)[:intact]
    # Cut where the first broken step begins: a step is five characters, and the separators before it are kept.
    kept = failed[: parse_steps(failed)[intact].at - 4] if intact < len(truth) else failed[: failed.index("#")]
    value = written[-1].result if written else start
    repaired = continue_response(kept, value, chain[intact:], NO_ERRORS if rng.random() < repair_rate else rates, rng)
    return task.revise(problem, failed, sibling), repaired

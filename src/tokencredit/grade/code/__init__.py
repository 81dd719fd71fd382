"""Grade the program in a response by its tests. It runs in the sandbox and answers questions; it never sees the expected answers.

`docs/sandbox.md` lists the attacks that a program may try and the result of each.
"""

import functools
import json
from typing import Any, NamedTuple

from tokencredit.grade.code.judge import Replies, holds
from tokencredit.grade.code.split import GoldError, SplitTests, split_tests
from tokencredit.grade.code.values import FailedError, Opaque, evaluate
from tokencredit.grade.sandbox import CodeLimits, Settled

FENCE = "```"
_PYTHON = ("python", "python3", "py")

REMAINING_HOLE = (
    "With judge_inside, a test whose judgement cannot be separated from its question (`all(f(x) == y for ...)`, `operator.eq(f(x), 3)`) is "
    "judged in the program's own process: an object that equals everything passes it. Without judge_inside, such a row is not graded. "
    "The program can read the question itself: `{3: 'yes'}.get(f(1)) == 'yes'` reveals what to return."
)


class CodeGold(NamedTuple):
    """The gold answer of a row, stored as JSON: {"tests": ["assert f(1) == 2", ...], "setup": "import math"}."""

    tests: tuple[str, ...]
    setup: str

    def dumps(self) -> str:
        return json.dumps({"tests": self.tests, "setup": self.setup})


class Outcome(NamedTuple):
    passed: tuple[bool, ...]
    """One value per assertion."""
    reason: str
    """How the program ended."""

    @property
    def solved(self) -> bool:
        return all(self.passed)


def grade_code(
    gold: str,
    response: str,
    *,
    isolation: Settled = "bubblewrap",
    judge_inside: bool = False,
    wall_seconds: float = 10.0,
    cpu_seconds: int = 5,
    memory_mb: int = 512,
    processes: int = 16,
) -> float:
    """1 if the response's program passes every test, else 0: also if it raises, runs too long or uses too much.

    Raises SandboxError where the sandbox fails and GoldError where the tests cannot be used: neither is the program's fault.
    """
    limits = CodeLimits(wall_seconds=wall_seconds, cpu_seconds=cpu_seconds, memory_mb=memory_mb, processes=processes)
    return float(run_tests(gold, extract_program(response), limits=limits, isolation=isolation, judge_inside=judge_inside).solved)


def run_tests(gold: str, program: str, *, limits: CodeLimits, isolation: Settled = "bubblewrap", judge_inside: bool = False) -> Outcome:
    tests = cut_gold(gold)
    if tests.judged_inside and not judge_inside:
        raise GoldError(f"judged where the program could tamper with it, which judge_inside=True would accept: {tests.judged_inside[0]}")
    expected = list(_expected(gold, isolation))
    answers = evaluate(tests.questions, program=program, setup=read_gold(gold).setup, limits=limits, isolation=isolation)
    replies = Replies(answers.replies, expected)
    return Outcome(tuple(holds(judgement, replies) for judgement in tests.judgements), answers.reason)


@functools.lru_cache(maxsize=4096)
def cut_gold(gold: str) -> SplitTests:
    read = read_gold(gold)
    return split_tests(read.tests, setup=read.setup)


@functools.lru_cache(maxsize=4096)
def _expected(gold: str, isolation: Settled) -> tuple[Any, ...]:
    """The expected values that are no literals, computed once in a process that no program has run in."""
    questions = cut_gold(gold).expected
    if not questions:
        return ()
    answers = evaluate(questions, program="", setup=read_gold(gold).setup, limits=CodeLimits(), isolation=isolation, import_missing=True)
    for question, reply in zip(questions, answers.replies, strict=True):
        if isinstance(reply, FailedError):
            raise GoldError(f"the expected value {question} cannot be computed: {reply}")
        if isinstance(reply, Opaque):
            raise GoldError(f"the expected value {question} is a {reply.kind}, which cannot be compared as plain data")
    return tuple(answers.replies)


def read_gold(gold: str) -> CodeGold:
    try:
        read = json.loads(gold)
        tests, setup = read["tests"], read.get("setup", "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise GoldError(f'the gold answer must be JSON like {{"tests": ["assert f(1) == 2"], "setup": ""}} ({problem!r})') from None
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests) or not isinstance(setup, str):
        raise GoldError("the gold answer's tests must be a list of text and its setup text")
    return CodeGold(tuple(tests), setup)


def extract_program(response: str) -> str:
    """The last block fenced as Python, else the last fenced block, else a Python block that is never closed, else the complete text.

    One pass over the lines: a response may be long and contain any number of fences.
    """
    blocks: list[tuple[str, str]] = []
    tag, begun = None, 0
    lines = response.split("\n")
    for number, line in enumerate(lines):
        if not line.startswith(FENCE):
            continue
        word = line.removeprefix(FENCE).strip()
        if tag is None:
            tag, begun = word.split(" ")[0].lower(), number + 1
        elif not word:
            blocks.append((tag, "\n".join(lines[begun:number]) + "\n"))
            tag = None
    python = [body for kind, body in blocks if kind in _PYTHON]
    if python or blocks:
        return python[-1] if python else blocks[-1][1]
    if tag in _PYTHON:
        return "\n".join(lines[begun:])
    # The prompt may have opened the fence that the response closes.
    return "\n".join(lines[: begun - 1]) if tag == "" and begun > 1 else response

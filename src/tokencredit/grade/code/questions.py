"""Questions to a program in the sandbox, and its answers as plain data."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.grade.code.judge import FailedError
from tokencredit.grade.code.values import NoValueError, rebuilt
from tokencredit.grade.sandbox import CodeLimits, Settled, run_program

ASKING = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


class Told(NamedTuple):
    replies: list[Any]
    """Per question: plain data, or the FailedError that stands for it."""
    reason: str


def ask(
    questions: Sequence[str], *, program: str, setup: str, limits: CodeLimits, isolation: Settled, import_missing: bool = False
) -> Told:
    """`import_missing`: a question may name a module of the standard library that nothing imported."""
    given = json.dumps({"setup": setup, "program": program, "questions": list(questions), "import_missing": import_missing})
    end = run_program(ASKING, limits=limits, given=given, isolation=isolation)
    try:
        answers = json.loads(end.output)
        if not isinstance(answers, list) or len(answers) != len(questions):
            raise ValueError(f"{len(questions)} answers were expected")
    except (ValueError, RecursionError):
        said = end.errors.strip().splitlines()
        why = f"no answers came ({end.reason})" + (f": {said[-1]}" if said else "")
        return Told([FailedError(why) for _ in questions], why)
    return Told([_reply(answer) for answer in answers], end.reason)


def _reply(answer: Any) -> Any:
    try:
        kind, value = answer
        return rebuilt(value) if kind == "value" else FailedError(f"it raised {value}")
    except (NoValueError, ValueError, TypeError) as problem:
        return FailedError(str(problem))

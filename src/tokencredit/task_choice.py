"""Which task is trained on, and its dials. Imports no torch; `tasks/` holds what a task does."""

from typing import Annotated, Literal

from pydantic import Field

from tokencredit.stages import Count, Frozen, Positive, Share
from tokencredit.stages.base import OnlyWhen


class StepsTask(Frozen):
    """Chains of additions and subtractions mod 10, worked out on a scratchpad."""

    type: Literal["steps"] = "steps"
    operations: Annotated[int, Field(ge=1, le=20)] = 4
    """Operations in a chain."""
    subtract_share: Share = 0.5
    """Share of subtractions, where the base errs most."""


class CotAddTask(Frozen):
    """Addition, answered directly or after a scratchpad that RL discovers."""

    type: Literal["cotadd"] = "cotadd"
    digits: Annotated[int, Field(ge=1, le=12)] = 4
    """Digits of each term."""


class JsonlTask(Frozen):
    """Questions and gold answers from a JSON-lines file, graded in child processes under limits."""

    type: Literal["jsonl"] = "jsonl"
    path: str | None = None
    """The file: one JSON object per line."""
    held_out_path: str | None = None
    """A file of held-out rows; without it one row in ten of `path` is held out, by its own text."""
    question: str = "question"
    """Column of the question."""
    answer: str = "answer"
    """Column of the answer: text or a number."""
    template: str = "{question}\n"
    """The prompt; {question} is replaced."""
    gold_pattern: str | None = None
    """Regular expression whose last match in the answer column is the gold answer, its group if it has one; none takes the whole column."""
    grading: Literal["math", "exact", "regex"] = "math"
    """How a response is compared with the gold answer."""
    pattern: Annotated[str | None, OnlyWhen("grading", ("regex",))] = None
    """Regular expression whose last match in a response is its answer, its group if it has one."""
    deadline: Positive = 5.0
    """Seconds for one verdict; after that it could not be graded."""
    memory: Count = 1024
    """MiB that a grading process may take on top of its imports."""
    workers: Count = 2
    """Grading processes."""


class CodeTask(Frozen):
    """Problems that a Python program solves, from a JSON-lines file in the manner of MBPP; programs run in a sandbox."""

    type: Literal["code"] = "code"
    path: str | None = None
    """The file: one JSON object per line."""
    held_out_path: str | None = None
    """A file of held-out rows; without it one row in ten of `path` is held out, by its own text."""
    allow_code_execution: bool = False
    """Programs that a model wrote run on this machine, in the sandbox of docs/sandbox.md."""
    isolation: Literal["bubblewrap", "auto", "plain"] = "bubblewrap"
    """bubblewrap or nothing; bubblewrap if it works and plain limits otherwise; plain limits, which isolate nothing."""
    text: str = "text"
    """Column of the problem."""
    tests: str = "test_list"
    """Column of the tests: a list of assertions."""
    setup: str = "test_setup_code"
    """Column of what the tests need, such as imports: text or a list of lines. It may be missing."""
    code: str = "code"
    """Column of the reference solution, which must pass its own tests."""
    template: str = "{text}\nWrite it in Python, in one ```python block. It will be called like this: {call}\n"
    """The prompt. {text}: the problem; {call}: the first call the tests make, without its answer; {tests}: the tests, answers included."""
    judge_inside: bool = False
    """Accept tests that can only be judged in the program's own process, where it can tamper with them."""
    wall_seconds: Positive = 10.0
    """For one program, start to end."""
    cpu_seconds: Count = 5
    """For one process of a program."""
    memory: Count = 512
    """MiB of address space for one process of a program."""
    processes: Count = 16
    """Processes and threads of a program at once."""
    workers: Count = 2
    """Programs at once."""


TaskChoice = Annotated[StepsTask | CotAddTask | JsonlTask | CodeTask, Field(discriminator="type")]

"""Which task a run trains on, and its settings. Imports no torch; `tasks/` implements the tasks."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from tokencredit.config import Count, Frozen, Positive, Share
from tokencredit.config.base import OnlyWhen


def _plain(value: Any, info: ValidationInfo) -> Any:
    """Accept only values that TOML and JSON both hold. TOML has no null, so an unset value is always stored as "none"."""
    if isinstance(value, dict):
        return {name: _plain(inner, info) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, info) for inner in value]
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"task.{info.field_name} holds a {type(value).__name__}; give numbers, text, true or false, lists and tables")
    return "none" if value is None else value


Table = Annotated[dict[str, Any], AfterValidator(_plain)]
"""Settings whose names another library or the user's code defines. A file writes a table; flags write name=value."""


class TaskFields(Frozen):
    ladder: ClassVar[tuple[str, tuple[int, ...]] | None] = None
    """The field that sets the difficulty, and its values from easy to hard."""


class StepsTask(TaskFields):
    """Chains of additions and subtractions mod 10, worked out on a scratchpad."""

    ladder = ("operations", (2, 4, 6, 8))
    type: Literal["steps"] = "steps"
    operations: Annotated[int, Field(ge=1, le=20)] = 4
    """Operations in a chain."""
    subtract_share: Share = 0.5
    """Share of subtractions, where the base errs most."""


class CotAddTask(TaskFields):
    """Addition, answered directly or after a scratchpad that RL discovers."""

    ladder = ("digits", (1, 2, 3, 4))
    type: Literal["cotadd"] = "cotadd"
    digits: Annotated[int, Field(ge=1, le=12)] = 4
    """Digits of each term."""


class GuessTask(TaskFields):
    """Find a number in a range over several turns: after each guess the environment answers higher or lower."""

    ladder = ("width", (3, 7, 15))
    type: Literal["guess"] = "guess"
    width: Annotated[int, Field(ge=1, le=10**6)] = 15
    """The most numbers in a range; each holds more than half as many."""
    turns: Annotated[int, Field(ge=1, le=30)] = 4
    """The most guesses; 4 are enough for 15 numbers."""
    largest: Annotated[int, Field(ge=1, le=10**6)] = 99
    """The largest number."""


class ArithmeticTask(TaskFields):
    """One operation on two numbers of a chosen length; the answer alone is right."""

    ladder = ("digits", (1, 2, 3, 4))
    type: Literal["arithmetic"] = "arithmetic"
    digits: Annotated[int, Field(ge=1, le=9)] = 2
    """Digits of each term."""
    operator: Literal["+", "-", "*"] = "+"


class CountdownTask(TaskFields):
    """Numbers and a target; the response is an expression that uses every number once and equals the target."""

    ladder = ("numbers", (2, 3, 4))
    type: Literal["countdown"] = "countdown"
    numbers: Annotated[int, Field(ge=2, le=6)] = 3
    """How many numbers are given."""
    largest: Annotated[int, Field(ge=1, le=1000)] = 30
    """The largest that a given number may be."""
    target_largest: Annotated[int, Field(ge=1, le=10**9)] = 100
    """The largest that a target may be."""


class JsonlTask(TaskFields):
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


class CodeTask(TaskFields):
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


class ReasoningGymTask(TaskFields):
    """Problems that reasoning-gym makes up and scores (extra tasks), in child processes under limits."""

    type: Literal["reasoning-gym"] = "reasoning-gym"
    dataset: str | None = None
    """One of its datasets, such as letter_counting."""
    parameters: Table = Field(default_factory=dict)
    """Settings of the dataset, such as min_words = 2; of a mixture, one table for each dataset."""
    mixture: Table = Field(default_factory=dict)
    """Datasets and their relative weights, instead of `dataset`: chain_sum = 1, gcd = 2."""
    template: str = "{question}\n"
    """The prompt; {question} is replaced."""
    answer_pattern: str | None = None
    """Regular expression whose last match in a response is scored, its group if it has one; none takes the whole response."""
    threshold: Share = 0.9999
    """A score below it counts as wrong: scorers give something for any answer, and 0.99 where one cell of a hundred is wrong."""
    partial_credit: bool = False
    """Take the scorer's own number as the reward."""
    deadline: Positive = 5.0
    """Seconds for one verdict; after that it could not be graded."""
    memory: Count = 1024
    """MiB that a grading process may take on top of its imports."""
    workers: Count = 2
    """Grading processes."""


class OwnTask(TaskFields):
    """A task of your own: any class with the methods that docs/your-task.md names."""

    type: Literal["own"] = "own"
    path: str | None = None
    """package.module:Name or file.py:Name of the class."""
    options: Table = Field(default_factory=dict)
    """Its keywords."""


TaskChoice = Annotated[
    StepsTask | CotAddTask | GuessTask | ArithmeticTask | CountdownTask | JsonlTask | CodeTask | ReasoningGymTask | OwnTask,
    Field(discriminator="type"),
]

"""What a task is: problems to ask, and a verifier that reads a response."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Split = Literal["train", "held-out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question. `answer` is what the verifier compares with; the policy never sees it."""

    prompt: str
    answer: str


@runtime_checkable
class Task(Protocol):
    """The whole contract between a task and an engine.

    `problems` must be a pure function of its arguments, and the two splits must never share a prompt.
    `grade` returns the reward, or NaN when the response could not be graded (never 0 for that).
    `token_class` labels every character of a response; tasks without structure return one label.
    """

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]: ...

    def grade(self, problem: Problem, response: str) -> float: ...

    def token_class(self, problem: Problem, response: str) -> list[str]: ...

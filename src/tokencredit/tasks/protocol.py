"""The task protocols: a task supplies problems and a verifier; optional protocols add demonstrations, turns, steps and more.

Tasks subclass nothing: a class is a task, or supports an optional protocol, if it has the methods.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

from tokencredit.grade.protocol import Verdict, ungraded

Split = Literal["train", "held-out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question. The verifier compares responses with `answer`; the policy never sees it."""

    prompt: str
    answer: str


@runtime_checkable
class Task(Protocol):
    """What every engine needs of a task.

    `problems` must be a pure function of its arguments, and the two splits must never share a prompt.
    `grade` returns the reward, or NaN when the response could not be graded (never 0 for that).
    `token_class` labels every character of a response; tasks without structure return one label.
    """

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]: ...

    def grade(self, problem: Problem, response: str) -> float: ...

    def token_class(self, problem: Problem, response: str) -> list[str]: ...


@runtime_checkable
class StepMarking(Task, Protocol):
    """A task that locates the steps of a response (their first character offsets), for credit per step."""

    def step_starts(self, problem: Problem, response: str) -> list[int]: ...


@runtime_checkable
class StepJudging(StepMarking, Protocol):
    """A task that knows which written steps are right: one verdict per step in the order of `step_starts`, fewer where it cannot tell."""

    def step_truth(self, problem: Problem, response: str) -> list[bool]: ...


@runtime_checkable
class FormatMarking(Task, Protocol):
    """A task that names the token classes that are free choices of format and deserve no credit."""

    @property
    def format_classes(self) -> frozenset[str]: ...


@runtime_checkable
class Revisable(Task, Protocol):
    """A task with its own prompt for a revision, given a failed response and a sibling response."""

    def revise(self, problem: Problem, failed: str, sibling: str) -> str: ...


@runtime_checkable
class HasDemonstrations(Task, Protocol):
    """A task that can write a right response, for a supervised warm start and for few-shot examples."""

    def demonstrate(self, problem: Problem, *, seed: int) -> str: ...


@runtime_checkable
class MultiTurn(Task, Protocol):
    """A task of several turns: policy and environment write in turn, and the conversation earns one reward.

    `reply` and `grade_turns` must be pure functions of their arguments: neither a turn nor a resume restores any state.
    Their `turns` are the policy's texts, one per turn. `grade` grades a conversation of one turn.
    """

    @property
    def turns(self) -> int:
        """The most turns that the policy may take."""
        ...

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """The environment's reply after these turns; None ends the conversation."""
        ...

    def grade_turns(self, problem: Problem, turns: Sequence[str]) -> float: ...


@runtime_checkable
class DemonstratingTurns(MultiTurn, Protocol):
    """A task of several turns that can write right ones."""

    def demonstrate_turns(self, problem: Problem, *, seed: int) -> list[str]: ...


@runtime_checkable
class HasGoldAnswer(Task, Protocol):
    """A task whose `Problem.answer` holds more than the gold answer, and that can extract the gold answer from it."""

    def gold_answer(self, problem: Problem) -> str: ...


@runtime_checkable
class BatchGrading(Task, Protocol):
    """A task that grades many responses at once, in child processes under limits, and gives the reason for each ungraded response."""

    def grade_all(self, asked: Sequence[tuple[Problem, str]]) -> list[Verdict]: ...


@runtime_checkable
class HasWarnings(Task, Protocol):
    """A task with warnings that the run must show its user."""

    @property
    def cautions(self) -> tuple[str, ...]: ...


class GoldReport(NamedTuple):
    checked: int
    """Number of gold answers graded as if they were responses."""
    failed: tuple[tuple[int, str], ...]
    """Gold answers that were not graded right: the line of the file, and the reason."""


@runtime_checkable
class GoldChecking(Task, Protocol):
    """A task that can grade its own gold answers. Rows that fail cannot be learnt and are no longer sampled."""

    def check_gold(self) -> GoldReport: ...

    def leave_out(self, failed: Sequence[tuple[int, str]]) -> None:
        """Stop sampling rows that an earlier check reported: a check may depend on timing, so a resumed run reuses the stored report."""
        ...


@runtime_checkable
class GoldCheckingBySide(GoldChecking, Protocol):
    """A task that can grade the gold answers of one split alone, for a command that does not use the other."""

    def check_gold_of(self, split: Split) -> GoldReport: ...


def verdicts(task: Task, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
    """One verdict per (problem, response). Where the verifier raises, the score is NaN with the reason, never 0."""
    if isinstance(task, BatchGrading):
        return task.grade_all(pairs)
    return [_verdict(partial(task.grade, problem, response)) for problem, response in pairs]


def turn_verdicts(task: MultiTurn, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
    """One verdict per (problem, turns). A conversation whose environment raised is ungraded too."""
    return [_verdict(partial(_grade_turns, task, problem, turns)) for problem, turns in pairs]


def _grade_turns(task: MultiTurn, problem: Problem, turns: Sequence[str]) -> float:
    if len(turns) < task.turns:
        # If the environment raised and so ended the conversation early, it raises here again, and the reason is kept.
        task.reply(problem, turns)
    return task.grade_turns(problem, turns)


def _verdict(judge: Callable[[], float]) -> Verdict:
    try:
        return Verdict(judge())
    except Exception as failure:
        return ungraded(f"the grader raised {type(failure).__name__}: {failure}")


def gold_answer(task: Task, problem: Problem) -> str:
    return task.gold_answer(problem) if isinstance(task, HasGoldAnswer) else problem.answer


def marks_steps(task: Task) -> TypeGuard[StepMarking]:
    return isinstance(task, StepMarking)


def format_classes(task: Task) -> frozenset[str]:
    return task.format_classes if isinstance(task, FormatMarking) else frozenset()


def step_verdicts(task: Task, problem: Problem, response: str) -> list[bool | None]:
    """For every character: whether its step is right; None where the task cannot tell."""
    verdicts: list[bool | None] = [None] * len(response)
    if isinstance(task, StepJudging):
        starts, truth = task.step_starts(problem, response), task.step_truth(problem, response)
        for start, end, right in zip(starts, [*starts[1:], len(response)], truth, strict=False):
            verdicts[start:end] = [right] * (end - start)
    return verdicts


REVISION_TEMPLATE = """{prompt}

A first attempt:
{failed}

Another attempt at the same problem:
{sibling}

The first attempt is wrong. Keep what is right in it, correct the mistake, and write the whole solution again:
"""


def revision_prompt(task: Task, problem: Problem, failed: str, sibling: str) -> str:
    """The task's own revision prompt, or an English template for tasks without one."""
    if isinstance(task, Revisable):
        return task.revise(problem, failed, sibling)
    return REVISION_TEMPLATE.format(prompt=problem.prompt, failed=failed, sibling=sibling)

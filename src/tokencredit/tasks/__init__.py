"""Tasks: problems and the verifiers that grade responses. `TASKS` maps each name to what builds the task from its fields."""

from collections.abc import Callable
from typing import TypeVar

from tokencredit.config.resolve import validated
from tokencredit.config.task import CodeTask, JsonlTask, ReasoningGymTask, TaskFields
from tokencredit.tasks.arithmetic import Arithmetic
from tokencredit.tasks.code import Code
from tokencredit.tasks.cotadd import CotAdd
from tokencredit.tasks.countdown import Countdown
from tokencredit.tasks.custom import custom_task
from tokencredit.tasks.guess import Guess
from tokencredit.tasks.jsonl import Jsonl
from tokencredit.tasks.protocol import (
    BatchGrading,
    DemonstratingTurns,
    GoldChecking,
    GoldReport,
    HasDemonstrations,
    HasWarnings,
    MultiTurn,
    Problem,
    Split,
    Task,
    format_classes,
    gold_answer,
    marks_steps,
    revision_prompt,
    step_verdicts,
    turn_verdicts,
    verdicts,
)
from tokencredit.tasks.reasoning_gym import ReasoningGym
from tokencredit.tasks.split import HeldOut
from tokencredit.tasks.steps import Steps

# The names of version 0.1; users' tasks may import them.
Cautioned, Conversing, Demonstrating, GradingTogether = HasWarnings, MultiTurn, HasDemonstrations, BatchGrading

Options = TypeVar("Options", bound=TaskFields)


def _with_options(task: Callable[[Options], Task], record: type[Options]) -> Callable[..., Task]:
    """Build from keywords, as every task in the table is built, a task that takes its configuration record."""

    def make(**fields: object) -> Task:
        options = validated({"task": {"type": record.model_fields["type"].default, **fields}}).task
        assert isinstance(options, record)
        return task(options)

    return make


TASKS: dict[str, Callable[..., Task]] = {
    "steps": Steps,
    "cotadd": CotAdd,
    "arithmetic": Arithmetic,
    "countdown": Countdown,
    "guess": Guess,
    "jsonl": _with_options(Jsonl, JsonlTask),
    "code": _with_options(Code, CodeTask),
    "reasoning-gym": _with_options(ReasoningGym, ReasoningGymTask),
    "own": custom_task,
}

__all__ = [
    "TASKS",
    "Arithmetic",
    "BatchGrading",
    "Cautioned",
    "Code",
    "Conversing",
    "CotAdd",
    "Countdown",
    "Demonstrating",
    "DemonstratingTurns",
    "GoldChecking",
    "GoldReport",
    "GradingTogether",
    "Guess",
    "HasDemonstrations",
    "HasWarnings",
    "HeldOut",
    "Jsonl",
    "MultiTurn",
    "Problem",
    "ReasoningGym",
    "Split",
    "Steps",
    "Task",
    "format_classes",
    "gold_answer",
    "marks_steps",
    "revision_prompt",
    "step_verdicts",
    "turn_verdicts",
    "verdicts",
]

"""Tasks: problems and the verifiers that grade responses. `TASKS` maps each name to what builds the task from its fields."""

from collections.abc import Callable

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

TASKS: dict[str, Callable[..., Task]] = {
    "steps": Steps,
    "cotadd": CotAdd,
    "arithmetic": Arithmetic,
    "countdown": Countdown,
    "guess": Guess,
    "jsonl": Jsonl,
    "code": Code,
    "reasoning-gym": ReasoningGym,
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

"""What is asked and how it is graded. `TASKS` is the table: name -> class."""

from tokencredit.tasks.code import Code
from tokencredit.tasks.cotadd import CotAdd
from tokencredit.tasks.jsonl import Jsonl
from tokencredit.tasks.protocol import (
    Cautioned,
    GoldChecking,
    GoldReport,
    Problem,
    Split,
    Task,
    format_classes,
    marks_steps,
    revision_prompt,
    step_verdicts,
    verdicts,
)
from tokencredit.tasks.steps import Steps

TASKS: dict[str, type[Task]] = {"steps": Steps, "cotadd": CotAdd, "jsonl": Jsonl, "code": Code}

__all__ = [
    "TASKS",
    "Cautioned",
    "Code",
    "CotAdd",
    "GoldChecking",
    "GoldReport",
    "Jsonl",
    "Problem",
    "Split",
    "Steps",
    "Task",
    "format_classes",
    "marks_steps",
    "revision_prompt",
    "step_verdicts",
    "verdicts",
]

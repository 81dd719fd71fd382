"""What is asked and how it is graded. `TASKS` is the table: name -> class."""

from tokencredit.tasks.cotadd import CotAdd
from tokencredit.tasks.protocol import Problem, Split, Task, format_classes, marks_steps, revision_prompt, step_verdicts, verdicts
from tokencredit.tasks.steps import Steps

TASKS: dict[str, type[Task]] = {"steps": Steps, "cotadd": CotAdd}

__all__ = [
    "TASKS",
    "CotAdd",
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

"""What is asked and how it is graded. `TASKS` is the table: name -> class."""

from tokencredit.tasks.cotadd import CotAdd
from tokencredit.tasks.protocol import Problem, Split, Task, marks_steps, revision_prompt
from tokencredit.tasks.steps import Steps

TASKS: dict[str, type[Task]] = {"steps": Steps, "cotadd": CotAdd}

__all__ = ["TASKS", "CotAdd", "Problem", "Split", "Steps", "Task", "marks_steps", "revision_prompt"]

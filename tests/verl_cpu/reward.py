"""verl's reward function for the embedded task."""

from typing import Any

from tokencredit.tasks.protocol import Problem
from tokencredit.tasks.steps import Steps


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], **_: Any) -> float:
    return Steps().grade(Problem(prompt=extra_info["prompt"], answer=ground_truth), solution_str)

"""Which prompts met in which optimizer step, and how their right and wrong responses were spread."""

from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.report.run_reader import Run
from tokencredit.report.token_view import StepTokens, number
from tokencredit.text import visible_in

VERDICTS = ("right", "wrong", "ungraded")
MOST_STEPS = 1000
"""Optimizer steps without any response that a table is still drawn for."""


def plan_grid(run: Run, tokens: StepTokens) -> dict[str, Any]:
    """Optimizer steps x prompts, in each cell the number of right, wrong and ungraded responses."""
    plan = run.plans.get(tokens.step, {})
    groups = list(tokens.by_group)
    column = {group: at for at, group in enumerate(groups)}
    step_of_row = _planned(plan) if plan else {response.row: _recorded(tokens, response.start) for response in tokens.responses}
    count = len(plan["steps"]) if plan else max([step + 1 for step in step_of_row.values()], default=0)
    if count > MOST_STEPS + len(tokens.responses):
        raise ConfigError(f"tokens of step {tokens.step} in {run.folder} are damaged: optimizer step {count - 1} cannot have been taken")
    cells = [[[0] * len(VERDICTS) for _ in groups] for _ in range(count)]
    unplaced = 0
    for response in tokens.responses:
        step = step_of_row.get(response.row, -1)
        if step < 0:
            unplaced += 1
        else:
            cells[step][column[response.group]][VERDICTS.index(response.verdict)] += 1
    return {
        "kind": visible_in(plan.get("kind")),
        "digest": visible_in(plan.get("digest")),
        "groups": groups,
        "cells": cells,
        "unplaced": unplaced,
        "steps": [{"denominator": number(step.get("denominator")), "tokens": number(step.get("tokens"))} for step in plan.get("steps", [])],
    }


def _planned(plan: dict[str, Any]) -> dict[int, int]:
    return {row: index for index, step in enumerate(plan["steps"]) for micro in step["micro_batches"] for row in micro}


def _recorded(tokens: StepTokens, at: int) -> int:
    step = tokens.columns["optimizer_step"][at]
    return -1 if step is None else int(step)

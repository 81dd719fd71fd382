"""The tokens of one training step for the report: responses grouped by prompt with the evidence on each token, and the plan grid.

Siblings are the responses to one prompt. The plan grid counts the right, wrong and ungraded responses per optimizer step and prompt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.report.run_reader import Run
from tokencredit.text import brief, sanitize, sanitize_values

NEEDED = ("row", "group", "position", "text")

COLUMNS = (
    "row", "group", "position", "prompt", "text", "token_class", "step_right", "token_id", "logp", "behavior_logp", "entropy",
    "score", "reward", "advantage", "coefficient", "credit", "optimizer_step",
)  # fmt: skip

EVIDENCE = (
    "change_first", "change_step", "predicted_first", "predicted_first_positive", "predicted_first_negative", "predicted_step",
    "raw_positive", "raw_negative", "raw_mini_positive", "raw_mini_negative", "kl", "entropy_after",
    "coupling_own", "coupling_same", "coupling_other", "value_before", "value_after",
)  # fmt: skip
"""Columns of a finding file on the page. Cancellation is not among them: the page computes it from the raw columns."""


class Response(NamedTuple):
    """A response: tokens `start` to `stop` (exclusive) of the columns."""

    row: int
    group: int
    start: int
    stop: int
    score: float | None

    @property
    def verdict(self) -> str:
        return "ungraded" if self.score is None else "right" if self.score >= 1 else "wrong"


@dataclass(frozen=True)
class StepTokens:
    """The tokens of a step, ordered by row and position. A column that the file does not have is all None."""

    step: int
    columns: dict[str, list[Any]]
    evidence: dict[str, list[float | None]]
    """Aligned with the columns; None for a token that was not measured. Holds only evidence with at least one value."""
    responses: tuple[Response, ...]

    @cached_property
    def by_group(self) -> dict[int, list[Response]]:
        """Responses by prompt, ordered so that siblings with the longest common prefix are neighbours."""
        ids = self.columns["token_id"] if self.columns["token_id"].count(None) == 0 else self.columns["text"]
        groups: dict[int, list[Response]] = {}
        for response in self.responses:
            groups.setdefault(response.group, []).append(response)
        for siblings in groups.values():
            siblings.sort(key=lambda sibling: (ids[sibling.start : sibling.stop], sibling.row))
        return groups

    def prompt(self, group: int) -> str:
        return str(self.columns["prompt"][self.by_group[group][0].start] or "")

    def values(self, name: str) -> list[float | None]:
        """A column, or evidence, by name."""
        if name in self.evidence:
            return self.evidence[name]
        return [number(value) for value in self.columns.get(name, [None] * len(self.columns["row"]))]

    def text(self, at: int) -> str:
        return sanitize(self.columns["text"][at] or "")


def number(value: Any) -> float | None:
    """The value as a float; None if it is missing, not a number, NaN or infinite, which JSON cannot express."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_step(run: Run, step: int) -> StepTokens:
    found = run.token_columns(step)
    missing = [name for name in NEEDED if name not in found]
    if missing:
        available = brief(", ".join(found)) or "none"
        raise ConfigError(f"tokens of step {step} in {run.folder} have no column {missing[0]!r}; their columns: {available}")
    order = sorted(range(len(found["row"])), key=lambda at: (found["row"][at], found["position"][at]))
    columns = {name: [found[name][at] for at in order] if name in found else [None] * len(order) for name in COLUMNS}
    return StepTokens(step, columns, _evidence(run, step, columns), tuple(_responses(columns)))


def _responses(columns: dict[str, list[Any]]) -> list[Response]:
    rows: Sequence[int] = columns["row"]
    starts = [at for at in range(len(rows)) if at == 0 or rows[at] != rows[at - 1]]
    return [
        Response(rows[start], columns["group"][start], start, stop, number(columns["score"][start]))
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True)
    ]


def _evidence(run: Run, step: int, columns: dict[str, list[Any]]) -> dict[str, list[float | None]]:
    found = run.evidence_columns(step)
    if not found:
        return {}
    place = {key: at for at, key in enumerate(zip(found["row"], found["position"], strict=True))}
    where = [place.get(key) for key in zip(columns["row"], columns["position"], strict=True)]
    joined = {name: [None if at is None else number(found[name][at]) for at in where] for name in EVIDENCE if name in found}
    return {name: values for name, values in joined.items() if any(value is not None for value in values)}


VERDICTS = ("right", "wrong", "ungraded")

MOST_STEPS = 1000
"""Maximum number of optimizer steps beyond the number of responses; a larger number means a damaged file."""


def plan_grid(run: Run, tokens: StepTokens) -> dict[str, Any]:
    """Optimizer steps x prompts; each cell counts right, wrong and ungraded responses."""
    plan = run.plans.get(tokens.step, {})
    groups = list(tokens.by_group)
    column = {group: at for at, group in enumerate(groups)}
    step_of_row = _planned(plan) if plan else {response.row: _recorded(tokens, response.start) for response in tokens.responses}
    count = len(plan["steps"]) if plan else max([step + 1 for step in step_of_row.values()], default=0)
    if count > MOST_STEPS + len(tokens.responses):
        raise ConfigError(f"tokens of step {tokens.step} in {run.folder} are damaged: optimizer step {count - 1} is impossible")
    cells = [[[0] * len(VERDICTS) for _ in groups] for _ in range(count)]
    unplaced = 0
    for response in tokens.responses:
        step = step_of_row.get(response.row, -1)
        if step < 0:
            unplaced += 1
        else:
            cells[step][column[response.group]][VERDICTS.index(response.verdict)] += 1
    return {
        "kind": sanitize_values(plan.get("kind")),
        "digest": sanitize_values(plan.get("digest")),
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

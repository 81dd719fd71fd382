"""The interface of planners (`PlanInputs` in, the rows of each optimizer step out), and three of them: shuffled, by query, stratified."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple


class PlanInputs(NamedTuple):
    """The facts about the rows of a batch that a planner may use."""

    lengths: Sequence[int]
    """Loss tokens of each row."""
    group: Sequence[int]
    advantage: Sequence[float] | None
    """One per row; its sign is the row's side, and 0 is on neither side."""
    optimizer_steps: int
    seed: int


class DealtStep(NamedTuple):
    """The rows of one optimizer step."""

    rows: list[int]
    credit_scale: list[float] | None = None
    """Factor on the credit of each row; None where all are 1."""


Planner = Callable[..., list[DealtStep]]
"""`(inputs, **knobs) -> list[DealtStep]`"""


def deal(items: Sequence[int], hands: int) -> list[list[int]]:
    """Cut a sequence into `hands` contiguous runs whose lengths differ by at most one."""
    base, extra = divmod(len(items), hands)
    starts = [hand * base + min(hand, extra) for hand in range(hands + 1)]
    return [list(items[start:end]) for start, end in pairwise(starts)]


def rows_to_deal(inputs: PlanInputs) -> list[int]:
    """All rows; an error if there are fewer rows than optimizer steps."""
    if inputs.optimizer_steps > len(inputs.group):
        raise ValueError(f"optimizer_steps is {inputs.optimizer_steps} but there are only {len(inputs.group)} responses to deal")
    return list(range(len(inputs.group)))


def plan_shuffled(inputs: PlanInputs) -> list[DealtStep]:
    """Shuffled: a random partition of the rows into steps of (nearly) equal size, regardless of their prompts."""
    rows = rows_to_deal(inputs)
    Random(inputs.seed).shuffle(rows)
    return [DealtStep(hand) for hand in deal(rows, inputs.optimizer_steps)]


def by_query(rows: Iterable[int], inputs: PlanInputs) -> dict[int, list[int]]:
    """Rows of each prompt, prompts in ascending order."""
    rows_of: dict[int, list[int]] = {}
    for row in rows:
        rows_of.setdefault(inputs.group[row], []).append(row)
    return dict(sorted(rows_of.items()))


def queries_to_deal(inputs: PlanInputs) -> dict[int, list[int]]:
    """All rows of each prompt; an error if there are fewer prompts than optimizer steps."""
    rows_of = by_query(range(len(inputs.group)), inputs)
    if inputs.optimizer_steps > len(rows_of):
        raise ValueError(f"optimizer_steps is {inputs.optimizer_steps} but there are only {len(rows_of)} prompts to keep whole")
    return rows_of


def plan_by_query(inputs: PlanInputs) -> list[DealtStep]:
    """Query-preserved (2605.08666, our reading): a random partition of the prompts into steps, each with all responses of its prompts.

    Opposing signals of a prompt then meet in one step.
    """
    rows_of = queries_to_deal(inputs)
    queries = list(rows_of)
    Random(inputs.seed).shuffle(queries)
    return [DealtStep([row for query in hand for row in rows_of[query]]) for hand in deal(queries, inputs.optimizer_steps)]


def plan_stratified(inputs: PlanInputs) -> list[DealtStep]:
    """Stratified: every optimizer step holds a few responses of every prompt.

    Prompts come in random order; the shuffled rows of each go to the steps in turn, starting after the last row's step. A prompt's
    rows per step differ by at most one, and so do all rows per step. A prompt with fewer rows than steps is missing in some.
    """
    rows_of = by_query(rows_to_deal(inputs), inputs)
    draw = Random(inputs.seed)
    queries = list(rows_of)
    draw.shuffle(queries)
    turns = [row for query in queries for row in draw.sample(rows_of[query], len(rows_of[query]))]
    return [DealtStep(turns[step :: inputs.optimizer_steps]) for step in range(inputs.optimizer_steps)]

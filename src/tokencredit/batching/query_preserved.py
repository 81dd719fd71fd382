"""Query-preserved: prompts, not responses, are dealt, so opposing signals of a prompt meet (2605.08666, our reading)."""

from collections.abc import Iterable
from random import Random

from tokencredit.batching.deal import deal
from tokencredit.batching.stage import DealtStep, PlanInputs


def by_query(rows: Iterable[int], inputs: PlanInputs) -> dict[int, list[int]]:
    """Rows of each prompt, prompts in ascending order."""
    rows_of: dict[int, list[int]] = {}
    for row in rows:
        rows_of.setdefault(inputs.group[row], []).append(row)
    return dict(sorted(rows_of.items()))


def queries_to_deal(inputs: PlanInputs) -> dict[int, list[int]]:
    """All rows of each prompt; refused where prompts are too few for the steps."""
    rows_of = by_query(range(len(inputs.group)), inputs)
    if inputs.optimizer_steps > len(rows_of):
        raise ValueError(f"optimizer_steps is {inputs.optimizer_steps} but there are only {len(rows_of)} prompts to keep whole")
    return rows_of


def plan_by_query(inputs: PlanInputs) -> list[DealtStep]:
    """A random partition of the prompts into steps; every step holds all responses of its prompts."""
    rows_of = queries_to_deal(inputs)
    queries = list(rows_of)
    Random(inputs.seed).shuffle(queries)
    return [DealtStep([row for query in hand for row in rows_of[query]]) for hand in deal(queries, inputs.optimizer_steps)]

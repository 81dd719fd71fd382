"""Query-preserved: prompts, not responses, are dealt, so opposing signals of a prompt meet (2605.08666, our reading)."""

from collections.abc import Sequence
from random import Random

from tokencredit.batching.shuffled import deal


def split_by_query(group: Sequence[int], *, optimizer_steps: int, seed: int) -> list[list[int]]:
    """A random partition of the prompts into steps; every step holds all responses of its prompts."""
    queries = sorted(set(group))
    if optimizer_steps > len(queries):
        raise ValueError(f"optimizer_steps is {optimizer_steps} but there are only {len(queries)} prompts to keep whole")
    Random(seed).shuffle(queries)
    rows_of: dict[int, list[int]] = {query: [] for query in queries}
    for row, query in enumerate(group):
        rows_of[query].append(row)
    return [[row for query in hand for row in rows_of[query]] for hand in deal(queries, optimizer_steps)]

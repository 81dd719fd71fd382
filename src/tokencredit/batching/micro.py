"""Cut one optimizer step into micro-batches that fit a token budget, longest rows first."""

from collections.abc import Sequence


def cut_micro_batches(rows: Sequence[int], cost: Sequence[int], *, max_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Greedy over rows by falling cost; a micro-batch pads to its longest row, so rows x longest <= max_tokens.

    The longest comes first, so that running out of memory happens at once or not at all.
    """
    ordered = sorted(rows, key=lambda row: (-cost[row], row))
    if ordered and cost[ordered[0]] > max_tokens:
        raise ValueError(f"max_tokens is {max_tokens} but response {ordered[0]} with its prompt takes {cost[ordered[0]]} tokens")
    batches: list[tuple[int, ...]] = []
    while ordered:
        fitting = max(1, max_tokens // max(1, cost[ordered[0]]))
        batches.append(tuple(ordered[:fitting]))
        ordered = ordered[fitting:]
    return tuple(batches)

"""Cut one optimizer step into micro-batches that fit a token budget, longest rows first."""

from collections.abc import Sequence


def cut_micro_batches(rows: Sequence[int], cost: Sequence[int], *, max_tokens: int, packed: bool = False) -> tuple[tuple[int, ...], ...]:
    """Greedy over rows by falling cost; a micro-batch pads to its longest row, so rows x longest <= max_tokens.

    The longest comes first, so that running out of memory happens at once or not at all. `packed` rows are not padded: each goes
    into the first micro-batch that its own cost still fits into.
    """
    ordered = sorted(rows, key=lambda row: (-cost[row], row))
    if ordered and cost[ordered[0]] > max_tokens:
        raise ValueError(f"max_tokens is {max_tokens} but response {ordered[0]} with its prompt takes {cost[ordered[0]]} tokens")
    if packed:
        return _first_fit(ordered, cost, max_tokens)
    batches: list[tuple[int, ...]] = []
    while ordered:
        fitting = max(1, max_tokens // max(1, cost[ordered[0]]))
        batches.append(tuple(ordered[:fitting]))
        ordered = ordered[fitting:]
    return tuple(batches)


def pass_tokens(rows: Sequence[int], cost: Sequence[int], *, packed: bool = False) -> int:
    """Tokens that one micro-batch takes, padding included."""
    return sum(cost[row] for row in rows) if packed else len(rows) * max((cost[row] for row in rows), default=0)


def _first_fit(ordered: Sequence[int], cost: Sequence[int], max_tokens: int) -> tuple[tuple[int, ...], ...]:
    batches: list[list[int]] = []
    left: list[int] = []
    for row in ordered:
        needed = max(1, cost[row])
        place = next((place for place, room in enumerate(left) if room >= needed), len(batches))
        if place == len(batches):
            batches.append([])
            left.append(max_tokens)
        batches[place].append(row)
        left[place] -= needed
    return tuple(tuple(batch) for batch in batches)

"""The rows of one optimizer step dealt to ranks: equal shares, similar lengths side by side."""

from collections.abc import Sequence


def deal_micro_batches(rows: Sequence[int], cost: Sequence[int], *, ranks: int, micro_batches: int) -> list[list[tuple[int, ...]]]:
    """`dealt[rank][micro_batch]`, sizes differing by at most one; longest rows first, and those of a micro-batch alike on all ranks.

    With fewer rows than slots some micro-batches are empty.
    """
    ordered = sorted(rows, key=lambda row: (-cost[row], row))
    smallest, larger = divmod(len(ordered), ranks * micro_batches)
    dealt: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
    taken = 0
    for number in range(micro_batches):
        sizes = [smallest + (number * ranks + rank < larger) for rank in range(ranks)]
        run = ordered[taken : taken + sum(sizes)]
        taken += len(run)
        # The ranks with a row more come first, so every rank's turn is its own index.
        for rank in range(ranks):
            dealt[rank].append(tuple(run[rank::ranks]))
    return dealt


def share_evenly(rows: Sequence[int], cost: Sequence[int], *, ranks: int) -> list[list[int]]:
    """`shares[rank]`, all of one size, in turns that change direction so that no rank always gets the longer row."""
    if len(rows) % ranks:
        raise ValueError(f"{len(rows)} rows cannot be shared evenly by {ranks} ranks")
    ordered = sorted(rows, key=lambda row: (-cost[row], row))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for turn, start in enumerate(range(0, len(ordered), ranks)):
        hand = ordered[start : start + ranks]
        for rank, row in enumerate(hand if turn % 2 == 0 else reversed(hand)):
            shares[rank].append(row)
    return shares

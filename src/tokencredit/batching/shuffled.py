"""Shuffled: responses are dealt to optimizer steps at random, whichever prompt they answer."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random


def deal(items: Sequence[int], hands: int) -> list[list[int]]:
    """Cut a sequence into `hands` runs whose lengths differ by at most one."""
    base, extra = divmod(len(items), hands)
    starts = [hand * base + min(hand, extra) for hand in range(hands + 1)]
    return [list(items[start:end]) for start, end in pairwise(starts)]


def split_shuffled(group: Sequence[int], *, optimizer_steps: int, seed: int) -> list[list[int]]:
    """A random partition of the rows into steps of (nearly) equal size."""
    if optimizer_steps > len(group):
        raise ValueError(f"optimizer_steps is {optimizer_steps} but there are only {len(group)} responses to deal")
    rows = list(range(len(group)))
    Random(seed).shuffle(rows)
    return deal(rows, optimizer_steps)

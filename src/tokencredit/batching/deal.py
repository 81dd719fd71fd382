"""Shuffled: responses are dealt to optimizer steps at random, whichever prompt they answer."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from tokencredit.batching.stage import DealtStep, PlanInputs


def deal(items: Sequence[int], hands: int) -> list[list[int]]:
    """Cut a sequence into `hands` runs whose lengths differ by at most one."""
    base, extra = divmod(len(items), hands)
    starts = [hand * base + min(hand, extra) for hand in range(hands + 1)]
    return [list(items[start:end]) for start, end in pairwise(starts)]


def rows_to_deal(inputs: PlanInputs) -> list[int]:
    """Every row; refused where they are too few for the steps."""
    if inputs.optimizer_steps > len(inputs.group):
        raise ValueError(f"optimizer_steps is {inputs.optimizer_steps} but there are only {len(inputs.group)} responses to deal")
    return list(range(len(inputs.group)))


def plan_shuffled(inputs: PlanInputs) -> list[DealtStep]:
    """A random partition of the rows into steps of (nearly) equal size."""
    rows = rows_to_deal(inputs)
    Random(inputs.seed).shuffle(rows)
    return [DealtStep(hand) for hand in deal(rows, inputs.optimizer_steps)]

"""Plans against a twin that deals rows like cards and fills micro-batches one row at a time."""

from fractions import Fraction
from random import Random

import pytest
import torch

from tokencredit.batching import make_plan, step_denominator
from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.types import PlannedStep

LENGTHS = [5, 0, 9, 2, 2, 7, 1, 4, 9, 3, 6]
GROUPS = [4, 4, -1, 8, -1, 8, 8, 4, 0, 0, 8]
COSTS = [8, 3, 12, 6, 5, 11, 5, 7, 14, 8, 10]


def naive_micro_batches(rows: list[int], cost: list[int], max_tokens: int) -> tuple[tuple[int, ...], ...]:
    waiting = list(rows)
    batches: list[list[int]] = []
    while waiting:
        longest = waiting[0]
        for row in waiting:
            if cost[row] > cost[longest] or (cost[row] == cost[longest] and row < longest):
                longest = row
        waiting.remove(longest)
        padded_to = max(1, cost[batches[-1][0]]) if batches else 0
        if batches and (len(batches[-1]) + 1) * padded_to <= max_tokens:
            batches[-1].append(longest)
        else:
            batches.append([longest])
    return tuple(tuple(batch) for batch in batches)


def naive_dealing(group: list[int], kind: str, optimizer_steps: int, seed: int) -> list[list[int]]:
    units = [[row] for row in range(len(group))]
    if kind == "query-preserved":
        units = [[row for row, name in enumerate(group) if name == query] for query in sorted(set(group))]
    Random(seed).shuffle(units)
    sizes = [0] * optimizer_steps
    for turn in range(len(units)):
        sizes[turn % optimizer_steps] += 1
    hands = iter(units)
    return [[row for _ in range(size) for row in next(hands)] for size in sizes]


def naive_denominator(lengths: list[int], aggregation: str, constant_length: int) -> Fraction:
    divisor = Fraction(0)
    for length in lengths:
        divisor += {"token-mean": length, "sequence-mean": 1, "constant": constant_length}[aggregation]
    return max(Fraction(1), divisor)


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "constant"])
@pytest.mark.parametrize("optimizer_steps", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["shuffled", "query-preserved"])
def test_make_plan_equals_the_naive_twin(kind: str, optimizer_steps: int, aggregation: str) -> None:
    for seed, max_tokens in [(0, 14), (1, 20), (2, 33), (3, 1000)]:
        plan = make_plan(
            LENGTHS,
            GROUPS,
            kind=kind,
            optimizer_steps=optimizer_steps,
            max_tokens=max_tokens,
            seed=seed,
            aggregation=aggregation,
            constant_length=6,
            cost=COSTS,
        )
        expected = tuple(
            PlannedStep(
                micro_batches=naive_micro_batches(rows, COSTS, max_tokens),
                denominator=float(naive_denominator([LENGTHS[row] for row in rows], aggregation, 6)),
                prompts=len({GROUPS[row] for row in rows}),
                tokens=sum(LENGTHS[row] for row in rows),
            )
            for rows in naive_dealing(GROUPS, kind, optimizer_steps, seed)
        )
        assert plan.steps == expected
        assert (plan.kind, plan.seed, plan.rows) == (kind, seed, len(LENGTHS))


def test_tensors_and_lists_make_the_same_plan() -> None:
    listed = make_plan(LENGTHS, GROUPS, optimizer_steps=3, max_tokens=40, seed=5, cost=COSTS)
    tensors = make_plan(torch.tensor(LENGTHS), torch.tensor(GROUPS), optimizer_steps=3, max_tokens=40, seed=5, cost=torch.tensor(COSTS))
    assert tensors == listed
    assert tensors.digest == listed.digest


def test_cost_defaults_to_the_lengths() -> None:
    without = make_plan(LENGTHS, GROUPS, optimizer_steps=2, max_tokens=18, seed=1)
    stated = make_plan(LENGTHS, GROUPS, optimizer_steps=2, max_tokens=18, seed=1, cost=LENGTHS)
    other = make_plan(LENGTHS, GROUPS, optimizer_steps=2, max_tokens=18, seed=1, cost=COSTS)
    assert without == stated
    assert without.steps != other.steps


@pytest.mark.parametrize("max_tokens", [14, 15, 24, 28, 36, 55, 400])
def test_cut_micro_batches_equals_the_naive_twin(max_tokens: int) -> None:
    for rows in ([], [3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [10, 4, 6, 3, 9, 0]):
        assert cut_micro_batches(rows, COSTS, max_tokens=max_tokens) == naive_micro_batches(rows, COSTS, max_tokens)


def test_cut_micro_batches_by_hand() -> None:
    """Budget 12: the 6 takes one more row, then three rows pad to 4, then what is left; equal costs keep row order."""
    cost = [2, 6, 4, 4, 5, 1, 4]
    assert cut_micro_batches(range(7), cost, max_tokens=12) == ((1, 4), (2, 3, 6), (0, 5))


def test_empty_rows_still_take_a_place() -> None:
    assert cut_micro_batches([0, 1, 2], [0, 0, 0], max_tokens=2) == ((0, 1), (2,))


@pytest.mark.parametrize(
    ("lengths", "aggregation", "expected"),
    [
        ([3, 0, 5], "token-mean", 8.0),
        ([3, 0, 5], "sequence-mean", 3.0),
        ([3, 0, 5], "constant", 30.0),
        ([0, 0], "token-mean", 1.0),
        ([], "token-mean", 1.0),
        ([], "sequence-mean", 1.0),
    ],
)
def test_step_denominator_by_hand(lengths: list[int], aggregation: str, expected: float) -> None:
    assert step_denominator(lengths, aggregation=aggregation, constant_length=10) == expected

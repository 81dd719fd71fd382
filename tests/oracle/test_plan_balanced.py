"""Reward-balanced and stratified plans against twins that place one row at a time and search where the package sorts."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch

from oracle.test_plan import naive_dealing, naive_denominator, naive_micro_batches
from tokencredit.batching import make_plan
from tokencredit.types import PlannedStep

Batch = dict[str, Any]
"""Keyword arguments of `make_plan`."""

Dealing = Callable[[Batch], list[list[int]]]


def random_batch(seed: int) -> Batch:
    """Uneven groups out of order, rows without tokens, one-sided and sideless prompts."""
    draw = Random(seed)
    group = [7, 3, 5, *(draw.choice([3, 5, 7, 11, -2]) for _ in range(draw.randrange(12)))]
    return {
        "lengths": [draw.randrange(7) for _ in group],
        "group": group,
        "advantage": [draw.choice([-1.5, -1.0, -0.25, 0.0, 0.5, 1.0]) for _ in group],
        "cost": [draw.randrange(7, 12) for _ in group],
        "max_tokens": draw.randrange(12, 60),
        "optimizer_steps": draw.randint(1, 3),
        "seed": draw.randrange(100),
    }


def sign(value: float) -> int:
    return 1 if value > 0 else -1 if value < 0 else 0


def rows_of_prompts(group: list[int]) -> dict[int, list[int]]:
    return {name: [row for row, other in enumerate(group) if other == name] for name in sorted(set(group))}


def naive_assigned_prompts(batch: Batch) -> list[list[int]]:
    """Try the prompt in every step that can take it; keep what gives the smallest sum of squared imbalances."""
    prompts, steps, draw = rows_of_prompts(batch["group"]), batch["optimizer_steps"], Random(batch["seed"])
    waiting = list(prompts)
    draw.shuffle(waiting)
    limits = [len(prompts) // steps + (step < len(prompts) % steps) for step in range(steps)]

    def excess(names: list[int]) -> int:
        return sum(sign(batch["advantage"][row]) for name in names for row in prompts[name])

    def tokens(names: list[int]) -> int:
        return sum(batch["lengths"][row] for name in names for row in prompts[name])

    hands: list[list[int]] = [[] for _ in range(steps)]

    def urgency(name: int) -> tuple[int, int, int]:
        """One-sided prompts first; of those, the side that has had fewer turns; then the longest."""
        turns = sum(excess([dealt]) == excess([name]) for hand in hands for dealt in hand)
        return abs(excess([name])), -turns, tokens([name])

    while waiting:
        name = waiting[0]
        for other in waiting:
            if urgency(other) > urgency(name):
                name = other
        waiting.remove(name)
        prices = []
        for hand in range(steps):
            tried = [[*names, name] if other == hand else names for other, names in enumerate(hands)]
            sizes = sorted(map(len, tried), reverse=True)
            if all(size <= limit for size, limit in zip(sizes, limits, strict=True)):
                prices.append((sum(excess(names) ** 2 for names in tried), tokens(hands[hand]), hand))
        hands[min(prices)[2]].append(name)
    draw.shuffle(hands)
    return [[row for name in hand for row in prompts[name]] for hand in hands]


def naive_assigned_rows(batch: Batch) -> list[list[int]]:
    """Put up the chairs of each side first, then seat rows one at a time."""
    steps, draw, sides = batch["optimizer_steps"], Random(batch["seed"]), [sign(value) for value in batch["advantage"]]
    chairs = [{side: sides.count(side) // steps for side in (1, -1, 0)} for _ in range(steps)]
    more, less, none = (sides.count(side) % steps for side in (1, -1, 0))
    together = min(more, less)
    while not any(chairs[0].values()) and more + less - together + none < steps:
        together -= 1
    for side, first, extra in ((1, 0, more), (-1, more - together, less), (0, more + less - together, none)):
        for chair in range(first, first + extra):
            chairs[chair % steps][side] += 1
    waiting = list(range(len(sides)))
    draw.shuffle(waiting)
    hands: list[list[int]] = [[] for _ in range(steps)]
    while waiting:
        row = waiting[0]
        for other in waiting:
            if batch["lengths"][other] > batch["lengths"][row]:
                row = other
        waiting.remove(row)
        prices = []
        for hand in range(steps):
            if [sides[other] for other in hands[hand]].count(sides[row]) < chairs[hand][sides[row]]:
                prices.append((sum(batch["lengths"][other] for other in hands[hand]), hand))
        hands[min(prices)[1]].append(row)
    draw.shuffle(hands)
    return hands


def naive_dealt(batch: Batch, keep_queries: bool) -> list[list[int]]:
    return naive_dealing(batch["group"], "query-preserved" if keep_queries else "shuffled", batch["optimizer_steps"], batch["seed"])


def naive_subsampled(batch: Batch, keep_queries: bool) -> list[list[int]]:
    draw = Random(f"subsample {batch['seed']}")
    steps = []
    for rows in naive_dealt(batch, keep_queries):
        staying = [row for row in rows if batch["advantage"][row] == 0]
        for name in sorted({batch["group"][row] for row in rows}) if keep_queries else [None]:
            pool = [row for row in rows if name is None or batch["group"][row] == name]
            positive = [row for row in pool if batch["advantage"][row] > 0]
            negative = [row for row in pool if batch["advantage"][row] < 0]
            for rows_of_side, others in ((positive, negative), (negative, positive)):
                staying += draw.sample(rows_of_side, min(len(rows_of_side), len(others)))
        if staying:
            steps.append([row for row in rows if row in staying])
    return steps


def naive_stratified(batch: Batch) -> list[list[int]]:
    prompts, draw = rows_of_prompts(batch["group"]), Random(batch["seed"])
    names = list(prompts)
    draw.shuffle(names)
    hands: list[list[int]] = [[] for _ in range(batch["optimizer_steps"])]
    turn = 0
    for name in names:
        for row in draw.sample(prompts[name], len(prompts[name])):
            hands[turn].append(row)
            turn = (turn + 1) % len(hands)
    return hands


def naive_scale(batch: Batch, rows: list[int], mass: str) -> dict[int, Fraction] | None:
    masses = {1: Fraction(0), -1: Fraction(0), 0: Fraction(0)}
    for row in rows:
        masses[sign(batch["advantage"][row])] += abs(Fraction(batch["advantage"][row])) * (batch["lengths"][row] if mass == "tokens" else 1)
    if not masses[1] or not masses[-1] or masses[1] == masses[-1]:
        return None
    half = (masses[1] + masses[-1]) / 2
    return {row: Fraction(1) if batch["advantage"][row] == 0 else half / masses[sign(batch["advantage"][row])] for row in rows}


NAIVE: dict[str, tuple[dict[str, Any], Dealing]] = {
    "assign prompts": ({"kind": "reward-balanced"}, naive_assigned_prompts),
    "assign rows": ({"kind": "reward-balanced", "keep_queries": False}, naive_assigned_rows),
    "subsample prompts": ({"kind": "reward-balanced", "method": "subsample"}, lambda batch: naive_subsampled(batch, True)),
    "subsample steps": (
        {"kind": "reward-balanced", "method": "subsample", "keep_queries": False},
        lambda batch: naive_subsampled(batch, False),
    ),
    "stratified": ({"kind": "stratified"}, naive_stratified),
}


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "constant"])
@pytest.mark.parametrize("name", NAIVE)
def test_make_plan_equals_the_naive_twin(name: str, aggregation: str) -> None:
    choice, dealing = NAIVE[name]
    for seed in range(60):
        batch = random_batch(seed)
        plan = make_plan(**batch, **choice, aggregation=aggregation, constant_length=6)
        expected = tuple(
            PlannedStep(
                micro_batches=naive_micro_batches(rows, batch["cost"], batch["max_tokens"]),
                denominator=float(naive_denominator([batch["lengths"][row] for row in rows], aggregation, 6)),
                prompts=len({batch["group"][row] for row in rows}),
                tokens=sum(batch["lengths"][row] for row in rows),
            )
            for rows in dealing(batch)
        )
        assert plan.steps == expected
        assert (plan.kind, plan.seed, plan.rows) == (choice["kind"], batch["seed"], len(batch["lengths"]))


@pytest.mark.parametrize("mass", ["tokens", "responses"])
@pytest.mark.parametrize("keep_queries", [True, False])
def test_reweight_equals_exact_fractions(keep_queries: bool, mass: str) -> None:
    scaled = 0
    for seed in range(60):
        batch = random_batch(seed)
        plan = make_plan(**batch, kind="reward-balanced", method="reweight", keep_queries=keep_queries, mass=mass)
        dealt = naive_dealt(batch, keep_queries)
        assert [sorted(step.rows) for step in plan.steps] == [sorted(rows) for rows in dealt]
        for step, rows in zip(plan.steps, dealt, strict=True):
            expected = naive_scale(batch, rows, mass)
            assert (step.credit_scale is None) == (expected is None)
            if step.credit_scale is not None and expected is not None:
                assert step.credit_scale == pytest.approx([float(expected[row]) for row in step.rows], rel=1e-14)
                scaled += 1
    assert scaled > 40


def test_assign_pairs_one_sided_prompts_by_hand() -> None:
    """Prompts 0 and 2 have two positives more, 1 and 3 two negatives more: each step gets one of either."""
    advantage = [1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0]
    group = [0, 0, 1, 1, 2, 2, 3, 3]
    for seed in range(20):
        plan = make_plan([4] * 8, group, kind="reward-balanced", optimizer_steps=2, max_tokens=99, seed=seed, advantage=advantage)
        assert [sum(advantage[row] for row in step.rows) for step in plan.steps] == [0, 0]
        assert [step.prompts for step in plan.steps] == [2, 2]


def test_assign_splits_what_cannot_cancel_evenly_by_hand() -> None:
    """Imbalances 3, 1, 1, 1: the larger of two steps must hold 3 and one more; with three prompts to one, 3 stays alone."""
    advantage, group = [1.0] * 6, [0, 0, 0, 1, 2, 3]
    plan = make_plan([1] * 6, group, kind="reward-balanced", optimizer_steps=2, max_tokens=99, seed=0, advantage=advantage)
    assert sorted(len(step.rows) for step in plan.steps) == [2, 4]
    plan = make_plan([1] * 5, group[:5], kind="reward-balanced", optimizer_steps=2, max_tokens=99, seed=0, advantage=advantage[:5])
    assert sorted(tuple(sorted(step.rows)) for step in plan.steps) == [(0, 1, 2), (3, 4)]


def test_assign_gives_the_longer_sideless_prompts_to_different_steps_by_hand() -> None:
    plan = make_plan([9, 1, 8, 1], [0, 1, 2, 3], kind="reward-balanced", optimizer_steps=2, max_tokens=99, seed=0, advantage=[0.0] * 4)
    assert sorted(step.tokens for step in plan.steps) == [9, 10]


def test_subsample_by_hand() -> None:
    """Prompt 0: one of three positives stays; prompt 1 has no negative, so its positive goes and its sideless row stays."""
    advantage = [1.0, 1.0, 1.0, -3.0, 0.5, 0.0]
    settings: dict[str, Any] = {"kind": "reward-balanced", "method": "subsample", "optimizer_steps": 1, "max_tokens": 99}
    kept = set()
    for seed in range(30):
        (step,) = make_plan([2, 2, 2, 5, 7, 1], [0, 0, 0, 0, 1, 1], **settings, seed=seed, advantage=advantage).steps
        assert (step.tokens, step.denominator, step.prompts, len(step.rows)) == (8, 8.0, 2, 3)
        assert {3, 5} < set(step.rows)
        kept |= set(step.rows)
    assert kept == {0, 1, 2, 3, 5}


def test_subsample_that_leaves_nothing_plans_no_step() -> None:
    for keep_queries in (True, False):
        settings: dict[str, Any] = {"kind": "reward-balanced", "method": "subsample", "keep_queries": keep_queries, "seed": 0}
        assert make_plan([3, 3], [0, 1], **settings, optimizer_steps=2, max_tokens=9, advantage=[1.0, 2.0]).steps == ()
        half = make_plan([3, 3, 3], [0, 0, 1], **settings, optimizer_steps=2, max_tokens=9, advantage=[1.0, -2.0, 0.0])
        assert {row for step in half.steps for row in step.rows} >= {2}
        assert all(step.rows for step in half.steps)


def test_reweight_by_hand() -> None:
    """Tokens: M+ = 1 x 2, M- = 0.5 x 4 + 0.5 x 8 = 6, so 4 / 2 and 4 / 6; responses: M+ = M- = 1. Rows come longest first."""
    settings: dict[str, Any] = {"kind": "reward-balanced", "method": "reweight", "optimizer_steps": 1, "max_tokens": 99, "seed": 0}
    batch: dict[str, Any] = {"lengths": [2, 4, 8, 5], "group": [0, 0, 0, 0], "advantage": [1.0, -0.5, -0.5, 0.0]}
    (step,) = make_plan(**batch, **settings).steps
    assert step.rows == (2, 3, 1, 0)
    assert step.credit_scale == pytest.approx((4 / 6, 1.0, 4 / 6, 2.0), rel=1e-15)
    assert make_plan(**batch, **settings, mass="responses").steps[0].credit_scale is None


def test_stratified_by_hand() -> None:
    """Three prompts of three rows over two steps: 2 + 1, 1 + 2, 2 + 1."""
    for seed in range(10):
        plan = make_plan([1] * 9, [0, 0, 0, 1, 1, 1, 2, 2, 2], kind="stratified", optimizer_steps=2, max_tokens=99, seed=seed)
        counts = [[sum(row // 3 == prompt for row in step.rows) for prompt in range(3)] for step in plan.steps]
        assert sorted(counts[0]) == [1, 2, 2]
        assert [sum(pair) for pair in zip(*counts, strict=True)] == [3, 3, 3]


def test_defaults_and_tensors() -> None:
    batch = random_batch(4)
    stated = make_plan(**batch, kind="reward-balanced", method="assign", keep_queries=True, mass="tokens")
    tensors = {name: torch.tensor(batch[name]) for name in ("lengths", "group", "cost", "advantage")}
    assert make_plan(**batch, kind="reward-balanced") == stated
    assert make_plan(**(batch | tensors), kind="reward-balanced").digest == stated.digest


@pytest.mark.parametrize("kind", ["shuffled", "query-preserved", "stratified"])
def test_other_kinds_do_not_look_at_the_advantage(kind: str) -> None:
    batch = random_batch(7)
    knobs = {"method": "reweight", "keep_queries": False, "mass": "responses"}
    assert make_plan(**batch, kind=kind, **knobs).digest == make_plan(**(batch | {"advantage": None}), kind=kind).digest

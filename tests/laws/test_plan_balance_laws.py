"""What must hold for reward-balanced and stratified plans; and the wrong versions each law rejects."""

from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_plan import DEALING, REWEIGHTING, SUBSAMPLING, make_plan_with
from laws.plan_cases import Batch, batches, dealt, few_rows
from tokencredit.advantage import group_advantage
from tokencredit.batching import make_plan

ASSIGN = batches(kinds=("reward-balanced",), methods=("assign",))
ASSIGN_PROMPTS = batches(kinds=("reward-balanced",), methods=("assign",), keep_queries=(True,))
ASSIGN_ROWS = batches(kinds=("reward-balanced",), methods=("assign",), keep_queries=(False,))
SUBSAMPLE = batches(kinds=("reward-balanced",), methods=("subsample",))
REWEIGHT = batches(kinds=("reward-balanced",), methods=("reweight",))
NO_ROW_LOST = batches(kinds=("reward-balanced", "stratified"), methods=("assign", "reweight"))
WHOLE_PROMPTS = batches(kinds=("reward-balanced",), methods=("assign", "reweight"), keep_queries=(True,))
STRATIFIED = batches(kinds=("stratified",))


def sides(batch: Batch, rows) -> list[int]:
    """Number of rows with a positive, a negative and no advantage."""
    signs = [(batch["advantage"][row] > 0) - (batch["advantage"][row] < 0) for row in rows]
    return [signs.count(sign) for sign in (1, -1, 0)]


def imbalance(batch: Batch, rows) -> int:
    positive, negative, _ = sides(batch, rows)
    return positive - negative


def worst(batch: Batch, steps) -> int:
    return max(abs(imbalance(batch, rows)) for rows in steps)


def prompts_of(batch: Batch) -> list[list[int]]:
    return [[row for row, other in enumerate(batch["group"]) if other == name] for name in sorted(set(batch["group"]))]


def spread(values) -> int:
    return max(values) - min(values)


def drawn_batches(seed: int, *, prompts: int, size: int, steps: int) -> list[Batch]:
    """Twelve batches of prompts as easy and as hard as they come."""
    draw, found = Random(seed), []
    for _ in range(12):
        solved = [draw.random() for _ in range(prompts)]
        found.append(
            {
                "lengths": [draw.randint(1, 40) for _ in range(prompts * size)],
                "group": [row // size for row in range(prompts * size)],
                "advantage": [1.0 if draw.random() < solved[row // size] else -1.0 for row in range(prompts * size)],
                "optimizer_steps": steps,
                "max_tokens": 99,
                "seed": draw.randrange(1000),
            }
        )
    return found


@for_all(NO_ROW_LOST | few_rows())
def every_row_is_in_exactly_one_step_and_no_step_is_empty(planner, batch):
    plan = planner(**batch)
    assert sorted(row for step in plan.steps for row in step.rows) == list(range(len(batch["lengths"])))
    assert len(plan.steps) == batch["optimizer_steps"]
    assert all(dealt(plan))


@for_all(WHOLE_PROMPTS)
def kept_queries_are_whole_in_one_step(planner, batch):
    plan = planner(**batch)
    for rows in prompts_of(batch):
        assert sum(bool(set(rows) & step) for step in dealt(plan)) == 1


@for_all(WHOLE_PROMPTS | few_rows().map(lambda batch: {**batch, "keep_queries": True}))
def prompts_per_step_are_even_where_queries_are_kept(planner, batch):
    plan = planner(**batch)
    assert spread([step.prompts for step in plan.steps]) <= 1


@for_all(WHOLE_PROMPTS, st.integers(0, 99))
def centred_advantages_cancel_in_every_step_of_whole_prompts(planner, batch, reward_seed):
    draw = Random(reward_seed)
    reward = torch.tensor([draw.randrange(-8, 9) / 4 for _ in batch["lengths"]]).double()
    advantage = group_advantage(reward, torch.tensor(batch["group"]), kind="dr-grpo").tolist()
    for step in planner(**{**batch, "advantage": advantage}).steps:
        assert abs(sum(advantage[row] for row in step.rows)) < 1e-12


@for_all(st.integers(0, 9999), st.booleans())
def assign_is_on_average_better_balanced_than_dealing_at_random(planner, seed, keep_queries):
    assigned, random = 0, 0
    for batch in drawn_batches(seed, prompts=10, size=4, steps=3):
        plain = {**batch, "kind": "query-preserved" if keep_queries else "shuffled"}
        assigned += worst(batch, dealt(planner(**{**batch, "kind": "reward-balanced", "keep_queries": keep_queries})))
        random += worst(batch, dealt(make_plan(**plain)))
    assert assigned <= random


@for_all(st.integers(0, 9999))
def assign_is_on_average_within_one_response_of_the_best_there_is(planner, seed):
    batches_drawn = drawn_batches(seed, prompts=5, size=5, steps=2)
    excess = 0
    for batch in batches_drawn:
        prompts = prompts_of(batch)
        best = min(
            worst(batch, [[row for rows, place in zip(prompts, places, strict=True) if place == step for row in rows] for step in (0, 1)])
            for places in product((0, 1), repeat=len(prompts))
            if sum(places) in (2, 3)
        )
        excess += worst(batch, dealt(planner(**batch, kind="reward-balanced"))) - best
    assert excess <= len(batches_drawn)


@for_all(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 9), st.integers(0, 999))
def opposite_prompts_in_equal_number_cancel_in_every_step(planner, lean, pairs_per_step, steps, length, seed):
    """Prompts of one positive or negative row more, or two, or three, next to a pair that cancels."""
    signs = [1.0, -1.0] * (pairs_per_step * steps)
    Random(seed).shuffle(signs)
    advantage = [value for sign in signs for value in [sign] * lean + [1.0, -1.0, 0.0]]
    group = [prompt for prompt in range(len(signs)) for _ in range(lean + 3)]
    batch: dict[str, Any] = {"lengths": [length] * len(group), "group": group, "advantage": advantage, "max_tokens": 99, "seed": seed}
    assert worst(batch, dealt(planner(**batch, kind="reward-balanced", optimizer_steps=steps))) == 0


@for_all(ASSIGN_ROWS)
def each_side_is_spread_evenly_over_steps_of_rows(planner, batch):
    counts = [sides(batch, rows) for rows in dealt(planner(**batch))]
    for side_counts in zip(*counts, strict=True):
        assert spread(side_counts) <= 1
    assert spread([sum(count) for count in counts]) <= 2
    total, steps = imbalance(batch, range(len(batch["group"]))), batch["optimizer_steps"]
    allowed = {total // steps, -(-total // steps)}
    if max(sides(batch, range(len(batch["group"])))) < steps:
        allowed |= {-1, 0, 1}
    assert {positive - negative for positive, negative, _ in counts} <= allowed


@for_all(st.integers(0, 9999), st.booleans())
def tokens_are_spread_where_balance_leaves_the_choice(planner, seed, keep_queries):
    assigned, random = 0, 0
    for batch in drawn_batches(seed, prompts=12, size=3, steps=3):
        sideless = {**batch, "advantage": [0.0] * len(batch["group"])}
        plan = planner(**sideless, kind="reward-balanced", keep_queries=keep_queries)
        assigned += spread([step.tokens for step in plan.steps])
        plain = make_plan(**batch, kind="query-preserved" if keep_queries else "shuffled")
        random += spread([step.tokens for step in plain.steps])
    assert assigned <= random / 2


@for_all(WHOLE_PROMPTS, st.randoms(use_true_random=False))
def permuting_rows_permutes_the_plan(planner, batch, shuffler):
    order = list(range(len(batch["group"])))
    shuffler.shuffle(order)
    permuted = {name: [batch[name][row] for row in order] for name in ("lengths", "group", "cost", "advantage")}
    plan, other = planner(**batch), planner(**{**batch, **permuted})
    assert dealt(plan) == [{order[row] for row in step} for step in dealt(other)]
    for step, moved in zip(plan.steps, other.steps, strict=True):
        assert scale_of(step) == {order[row]: scale for row, scale in scale_of(moved).items()}


@for_all(WHOLE_PROMPTS)
def swapping_the_sides_changes_nothing(planner, batch):
    swapped = planner(**{**batch, "advantage": [-value for value in batch["advantage"]]})
    assert swapped == planner(**batch)


@for_all(ASSIGN)
def only_signs_count_where_rows_are_assigned(planner, batch):
    larger = [value * (3 + row) for row, value in enumerate(batch["advantage"])]
    assert planner(**{**batch, "advantage": larger}) == planner(**batch)


@for_all(batches(kinds=("reward-balanced", "stratified"), methods=("assign", "reweight"), min_prompts=4))
def the_first_step_changes_with_the_seed(planner, batch):
    plans = [planner(**{**batch, "optimizer_steps": 2, "seed": seed}) for seed in range(12)]
    assert len({frozenset(dealt(plan)[0]) for plan in plans}) > 1


@for_all(SUBSAMPLE)
def subsample_keeps_as_many_of_either_side_as_the_smaller_has(planner, batch):
    plain = make_plan(**{**batch, "kind": "query-preserved" if batch["keep_queries"] else "shuffled"})
    pools = prompts_of(batch) if batch["keep_queries"] else dealt(plain)
    plan = planner(**batch)
    kept = set().union(*dealt(plan))
    for pool in pools:
        positive, negative, none = sides(batch, pool)
        assert sides(batch, kept & set(pool)) == [min(positive, negative), min(positive, negative), none]
    surviving = [step & kept for step in dealt(plain)]
    assert dealt(plan) == [step for step in surviving if step]


@for_all(SUBSAMPLE)
def subsample_divides_by_what_it_keeps(planner, batch):
    for step in planner(**{**batch, "aggregation": "token-mean"}).steps:
        assert step.denominator == max(1, sum(batch["lengths"][row] for row in step.rows))


@for_all(st.integers(2, 4), st.booleans())
def who_is_kept_is_drawn(planner, positives, keep_queries):
    batch: dict[str, Any] = {"lengths": [1] * (positives + 1), "group": [0] * (positives + 1), "advantage": [1.0] * positives + [-1.0]}
    choice: dict[str, Any] = {"kind": "reward-balanced", "method": "subsample", "keep_queries": keep_queries, "max_tokens": 9}
    kept = [dealt(planner(**batch, **choice, optimizer_steps=1, seed=seed))[0] for seed in range(40)]
    assert set().union(*kept) == set(range(positives + 1))


def scale_of(step) -> dict[int, float]:
    return dict(zip(step.rows, step.credit_scale or [1.0] * len(step.rows), strict=True))


@for_all(REWEIGHT)
def reweight_makes_both_masses_equal_and_keeps_their_sum(planner, batch):
    for step in planner(**batch).steps:
        before, after = {1: 0.0, -1: 0.0}, {1: 0.0, -1: 0.0}
        for row, scale in scale_of(step).items():
            advantage = batch["advantage"][row]
            assert scale > 0
            if advantage == 0:
                assert scale == 1
                continue
            side = 1 if advantage > 0 else -1
            length = batch["lengths"][row] if batch["mass"] == "tokens" else 1
            before[side] += abs(advantage) * length
            after[side] += abs(scale * advantage) * length
        if all(before.values()):
            assert after[1] == pytest.approx(after[-1], rel=1e-12)
            assert after[1] + after[-1] == pytest.approx(before[1] + before[-1], rel=1e-12)
        else:
            assert step.credit_scale is None


@for_all(REWEIGHT, st.integers(0, 60), st.integers(0, 99))
def the_cut_moves_scales_with_their_rows(planner, batch, more, cost_seed):
    draw = Random(cost_seed)
    cost = [draw.randint(1, 9) for _ in batch["cost"]]
    plan, recut = planner(**batch), planner(**{**batch, "cost": cost, "max_tokens": 9 + more})
    assert [scale_of(step) for step in plan.steps] == [scale_of(step) for step in recut.steps]


@for_all(st.lists(st.floats(0.1, 3.0), min_size=4, max_size=9), st.randoms(use_true_random=False))
def not_even_rounding_depends_on_the_order_of_rows(planner, positive, shuffler):
    choice: dict[str, Any] = {"kind": "reward-balanced", "method": "reweight", "optimizer_steps": 1, "max_tokens": 99, "seed": 0}
    shuffled = list(positive)
    shuffler.shuffle(shuffled)
    plans = [
        planner([1] * (len(values) + 1), [0] * (len(values) + 1), advantage=[*values, -1.0], **choice) for values in (positive, shuffled)
    ]
    assert plans[0].digest == plans[1].digest


@for_all(STRATIFIED)
def stratified_steps_share_every_prompt_evenly(planner, batch):
    steps = dealt(planner(**batch))
    assert spread([len(step) for step in steps]) <= 1
    for rows in prompts_of(batch):
        assert spread([len(step & set(rows)) for step in steps]) <= 1


@for_all(st.integers(4, 9), st.integers(2, 3))
def rows_of_a_stratified_prompt_are_shuffled(planner, rows, steps):
    plans = [planner([1] * rows, [0] * rows, kind="stratified", optimizer_steps=steps, max_tokens=9, seed=seed) for seed in range(12)]
    assert len({frozenset(dealt(plan)[0]) for plan in plans}) > 1


LAWS: dict[Law, tuple[str, ...]] = {
    every_row_is_in_exactly_one_step_and_no_step_is_empty: ("the larger step loses its last prompt", "a step may stay empty"),
    kept_queries_are_whole_in_one_step: ("queries are never kept", "responses are dealt under reweight"),
    prompts_per_step_are_even_where_queries_are_kept: (
        "a step takes any number of prompts",
        "larger steps are not counted",
    ),
    centred_advantages_cancel_in_every_step_of_whole_prompts: ("queries are never kept", "responses are dealt under reweight"),
    assign_is_on_average_better_balanced_than_dealing_at_random: (
        "like goes to like",
        "imbalance is not looked at",
    ),
    assign_is_on_average_within_one_response_of_the_best_there_is: (
        "like goes to like",
        "imbalance is not looked at",
        "a step forgets how it leans",
        "prompts ordered by tokens alone",
    ),
    opposite_prompts_in_equal_number_cancel_in_every_step: (
        "like goes to like",
        "imbalance is not looked at",
        "sides take no turns",
    ),
    each_side_is_spread_evenly_over_steps_of_rows: (
        "spare rows of the sides apart",
        "spare sideless rows join the spare positive ones",
        "sideless rows are positive",
    ),
    tokens_are_spread_where_balance_leaves_the_choice: (
        "tokens of prompts are not looked at",
        "tokens of rows are not looked at",
    ),
    permuting_rows_permutes_the_plan: ("prompts in order of appearance",),
    swapping_the_sides_changes_nothing: ("positive prompts first", "sideless rows are positive"),
    only_signs_count_where_rows_are_assigned: ("magnitudes are counted",),
    the_first_step_changes_with_the_seed: ("hands keep their order",),
    subsample_keeps_as_many_of_either_side_as_the_smaller_has: (
        "pairs are sought over the whole step",
        "pairs are sought within prompts always",
        "one pair at most",
        "only positives are thinned",
        "sideless rows go",
        "sideless rows are positive",
        "empty steps stay",
    ),
    subsample_divides_by_what_it_keeps: ("the denominator counts every row of the batch",),
    who_is_kept_is_drawn: ("the first rows stay",),
    reweight_makes_both_masses_equal_and_keeps_their_sum: (
        "scales in the order of dealing",
        "the other side's mass",
        "each side gets the whole mass",
        "the smaller side is raised to the larger",
        "scales carry the sign",
        "sideless rows are scaled",
        "masses of the whole batch",
        "tokens never count",
        "tokens always count",
        "masses count rows",
        "a lone side is halved",
    ),
    the_cut_moves_scales_with_their_rows: ("scales in the order of dealing",),
    not_even_rounding_depends_on_the_order_of_rows: ("masses summed in the order of rows",),
    stratified_steps_share_every_prompt_evenly: (
        "stratified in runs",
        "every prompt starts at the first step",
        "shuffled for stratified",
    ),
    rows_of_a_stratified_prompt_are_shuffled: ("stratified rows keep their order",),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, make_plan_with, DEALING, SUBSAMPLING, REWEIGHTING
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantage": None}, "advantage is None"),
        ({"advantage": [1.0, -1.0]}, "lengths holds 3 rows but advantage holds 2"),
        ({"advantage": [1.0, float("nan"), 0.0]}, "advantage holds nan"),
        ({"advantage": [1.0, float("inf"), 0.0]}, "advantage holds inf"),
        ({"method": "assigned"}, "method is 'assigned'; it must be assign, subsample or reweight"),
        ({"mass": "rows"}, "mass is 'rows'; it must be tokens or responses"),
        ({"optimizer_steps": 3}, "optimizer_steps is 3 but there are only 2 prompts"),
        ({"optimizer_steps": 3, "method": "subsample"}, "optimizer_steps is 3 but there are only 2 prompts"),
        ({"optimizer_steps": 4, "keep_queries": False}, "optimizer_steps is 4 but there are only 3 responses"),
        ({"optimizer_steps": 4, "kind": "stratified"}, "optimizer_steps is 4 but there are only 3 responses"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"optimizer_steps": 1, "kind": "reward-balanced", "advantage": [1.0, -1.0, 0.0]}
    with pytest.raises(ValueError, match=message):
        make_plan([2, 3, 4], [0, 0, 1], max_tokens=20, seed=0, **(fields | changes))

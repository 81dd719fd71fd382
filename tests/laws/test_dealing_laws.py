"""What must hold of rows dealt to ranks, and of the share of steps that split a group; and the wrong versions each law rejects."""

from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_dealing import MICRO_BATCHES, SHARES, SPLITTING, dealing_with


class Deal(NamedTuple):
    rows: list[int]
    """Some rows of a larger batch, in any order."""
    cost: list[int]
    """Of every row of that batch; many are alike."""
    ranks: int
    micro_batches: int


@st.composite
def deals(draw: st.DrawFn, *, even: bool = False) -> Deal:
    ranks = draw(st.integers(1, 4))
    rows = draw(st.permutations(range(draw(st.integers(1, 20)))))
    most = len(rows) // ranks * ranks if even else len(rows)
    taken = draw(st.integers(0, most))
    taken -= taken % ranks if even else 0
    cost = draw(st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)))
    return Deal(list(rows[:taken]), cost, ranks, draw(st.integers(1, 4)))


def dealt(implementation: Any, deal: Deal) -> list[list[tuple[int, ...]]]:
    return implementation.deal_micro_batches(deal.rows, deal.cost, ranks=deal.ranks, micro_batches=deal.micro_batches)


def shared(implementation: Any, deal: Deal) -> list[list[int]]:
    return implementation.share_evenly(deal.rows, deal.cost, ranks=deal.ranks)


@for_all(deals())
def every_row_lies_in_exactly_one_micro_batch(implementation, deal):
    made = dealt(implementation, deal)
    assert sorted(row for own in made for taken in own for row in taken) == sorted(deal.rows)
    assert [len(own) for own in made] == [deal.micro_batches] * deal.ranks


@for_all(deals())
def micro_batches_are_as_equal_as_can_be_and_the_larger_come_first(implementation, deal):
    made = dealt(implementation, deal)
    in_turn = [len(made[rank][number]) for number in range(deal.micro_batches) for rank in range(deal.ranks)]
    assert max(in_turn) - min(in_turn) <= 1
    assert in_turn == sorted(in_turn, reverse=True)
    assert min(in_turn) == len(deal.rows) // (deal.ranks * deal.micro_batches)


@for_all(deals(), st.integers(0, 99))
def the_order_in_which_rows_are_given_changes_nothing(implementation, deal, seed):
    shuffled = deal._replace(rows=Random(seed).sample(deal.rows, len(deal.rows)))
    assert dealt(implementation, deal) == dealt(implementation, shuffled)


@for_all(deals())
def longest_rows_come_first_and_micro_batches_are_alike_on_all_ranks(implementation, deal):
    """Read place by place over the ranks, one micro-batch after the other, costs never rise."""
    made, costs = dealt(implementation, deal), []
    for number in range(deal.micro_batches):
        taken = [own[number] for own in made]
        costs += [deal.cost[hand[place]] for place in range(max(map(len, taken))) for hand in taken if place < len(hand)]
    assert all(one >= other for one, other in pairwise(costs))


@for_all(deals(even=True))
def shares_are_of_one_size_and_hold_every_row_once(implementation, deal):
    made = shared(implementation, deal)
    assert [len(own) for own in made] == [len(deal.rows) // deal.ranks] * deal.ranks
    assert sorted(row for own in made for row in own) == sorted(deal.rows)


@for_all(deals(even=True))
def no_share_costs_more_than_another_by_more_than_the_rows_differ(implementation, deal):
    """By less than that where many rows differ: what one turn favours, the next one returns."""
    totals = [sum(deal.cost[row] for row in own) for own in shared(implementation, deal)]
    costs = [deal.cost[row] for row in deal.rows] or [0]
    assert max(totals) - min(totals) <= max(costs) - min(costs)


@for_all(st.integers(1, 4), st.integers(1, 4), st.integers(0, 9), st.integers(1, 9))
def evenly_rising_costs_are_shared_to_the_token(implementation, ranks, pairs_of_turns, least, step):
    cost = [least + step * row for row in range(2 * pairs_of_turns * ranks)]
    totals = {sum(cost[row] for row in own) for own in implementation.share_evenly(range(len(cost)), cost, ranks=ranks)}
    assert len(totals) == 1


@for_all(deals(even=True), st.integers(0, 99))
def shares_do_not_depend_on_the_order_given(implementation, deal, seed):
    shuffled = deal._replace(rows=Random(seed).sample(deal.rows, len(deal.rows)))
    assert shared(implementation, deal) == shared(implementation, shuffled)


@for_all(st.integers(2, 5), st.integers(0, 5), st.integers(1, 4))
def rows_that_cannot_be_shared_evenly_are_refused(implementation, ranks, turns, spare):
    rows, said = turns * ranks + min(spare, ranks - 1), "nothing"
    try:
        implementation.share_evenly(range(rows), [1] * rows, ranks=ranks)
    except ValueError as refusal:
        said = str(refusal)
    assert said == f"{rows} rows cannot be shared evenly by {ranks} ranks"


@st.composite
def dealt_steps(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Some rows, perhaps not all, dealt to steps, some of which may stay empty; and the group of each row."""
    group = draw(st.lists(st.integers(-2, 4), max_size=12))
    step_of = draw(st.lists(st.integers(-1, 3), min_size=len(group), max_size=len(group)))
    return [[row for row, step in enumerate(step_of) if step == number] for number in range(4)], group


@for_all(dealt_steps())
def a_step_splits_where_a_sibling_lies_in_another_step(implementation, case):
    steps, group = case
    elsewhere = [
        any(group[row] == group[other] for at, step in enumerate(steps) if at != number for row in rows for other in step)
        for number, rows in enumerate(steps)
    ]
    assert implementation.splitting_share(steps, group) == sum(elsewhere) / len(steps)


@for_all(dealt_steps())
def steps_of_whole_groups_split_none(implementation, case):
    _, group = case
    whole = [[row for row, name in enumerate(group) if name % 3 == number] for number in range(3)]
    assert implementation.splitting_share(whole, group) == 0.0


LAWS: dict[Law, tuple[str, ...]] = {
    every_row_lies_in_exactly_one_micro_batch: ("spare rows are dropped", "the next micro-batch begins with the last row of this"),
    micro_batches_are_as_equal_as_can_be_and_the_larger_come_first: (
        "the last micro-batch takes every spare row",
        "spare rows go to the last slots",
    ),
    the_order_in_which_rows_are_given_changes_nothing: ("rows in the order given", "ties in the order given"),
    longest_rows_come_first_and_micro_batches_are_alike_on_all_ranks: (
        "rows in the order given",
        "shortest rows first",
        "every rank a run of its own",
    ),
    shares_are_of_one_size_and_hold_every_row_once: ("every rank gets the longest rows",),
    no_share_costs_more_than_another_by_more_than_the_rows_differ: ("shares in runs", "shares in the order given"),
    evenly_rising_costs_are_shared_to_the_token: ("direction never changes", "shares in runs"),
    shares_do_not_depend_on_the_order_given: ("shares in the order given", "shares ordered by cost alone"),
    rows_that_cannot_be_shared_evenly_are_refused: ("unequal shares are not refused",),
    a_step_splits_where_a_sibling_lies_in_another_step: (
        "only the later step splits",
        "split groups are counted",
        "every group of the step must be split",
        "a group may lie in two steps",
        "the first step is left out",
        "a number of steps and no share",
    ),
    steps_of_whole_groups_split_none: ("a group met twice in one step is split",),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, dealing_with, MICRO_BATCHES, SHARES, SPLITTING
)

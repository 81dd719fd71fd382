"""Rows dealt to ranks, worked out on paper."""

import pytest

from tokencredit.pipeline.distributed import deal_micro_batches, share_evenly

COST = [5, 9, 9, 2, 7, 1, 8, 3, 6, 4]
"""From the longest: rows 1, 2, 6, 4, 8, 0, 9, 7, 3, 5."""


def test_seven_rows_for_two_ranks_and_two_micro_batches() -> None:
    dealt = deal_micro_batches([0, 1, 2, 3, 4, 6, 8], COST, ranks=2, micro_batches=2)
    assert dealt == [[(1, 6), (8, 3)], [(2, 4), (0,)]]


def test_fewer_rows_than_slots_leave_the_last_slots_empty() -> None:
    assert deal_micro_batches([3, 1, 6], COST, ranks=2, micro_batches=3) == [[(1,), (3,), ()], [(6,), (), ()]]
    assert deal_micro_batches([], COST, ranks=2, micro_batches=2) == [[(), ()], [(), ()]]


def test_one_rank_and_one_micro_batch_hold_everything() -> None:
    assert deal_micro_batches(range(10), COST, ranks=1, micro_batches=1) == [[(1, 2, 6, 4, 8, 0, 9, 7, 3, 5)]]


def test_shares_turn_around_so_that_no_rank_always_gets_the_longer_row() -> None:
    shares = share_evenly(range(8), COST, ranks=2)
    assert shares == [[1, 4, 0, 5], [2, 6, 7, 3]]
    assert [sum(COST[row] for row in own) for own in shares] == [22, 22]
    assert share_evenly(range(9), COST, ranks=3) == [[1, 0, 7], [2, 8, 3], [6, 4, 5]]


def test_a_share_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="7 rows cannot be shared evenly by 2 ranks"):
        share_evenly(range(7), COST, ranks=2)

"""Micro-batches of rows that are not padded: filled to the budget, longest first."""

import pytest
import torch

from tokencredit.batching.microbatch import cut_micro_batches


def naive(rows: list[int], cost: list[int], max_tokens: int) -> list[list[int]]:
    waiting, batches = list(rows), []
    while waiting:
        row = min(waiting, key=lambda row: (-cost[row], row))
        waiting.remove(row)
        for batch in batches:
            if sum(max(1, cost[each]) for each in [*batch, row]) <= max_tokens:
                batch.append(row)
                break
        else:
            batches.append([row])
    return batches


@pytest.mark.parametrize("max_tokens", [20, 23, 37, 64, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_rows_go_to_the_first_micro_batch_with_room(max_tokens: int, seed: int) -> None:
    cost = torch.randint(0, 21, (40,), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:30].tolist()
    found = cut_micro_batches(rows, cost, max_tokens=max_tokens, packed=True)
    assert [list(batch) for batch in found] == naive(rows, cost, max_tokens)
    assert sorted(row for batch in found for row in batch) == sorted(rows)
    assert found == cut_micro_batches(rows[::-1], cost, max_tokens=max_tokens, packed=True)


def test_by_hand() -> None:
    """Budget 12: 6 + 5 + 1 fill the first, 4 + 4 + 4 the second, and 2 is left; padded, the 6 would take one more row alone."""
    cost = [2, 6, 4, 4, 5, 1, 4]
    assert cut_micro_batches(range(7), cost, max_tokens=12, packed=True) == ((1, 4, 5), (2, 3, 6), (0,))
    assert cut_micro_batches([], cost, max_tokens=12, packed=True) == ()


def test_a_row_over_the_budget_is_refused_in_the_same_words() -> None:
    with pytest.raises(ValueError, match="max_tokens is 8 but response 1 with its prompt takes 9 tokens"):
        cut_micro_batches([0, 1], [3, 9], max_tokens=8, packed=True)


def test_packing_never_needs_more_micro_batches() -> None:
    cost = torch.randint(1, 65, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    packed, padded = (cut_micro_batches(range(200), cost, max_tokens=128, packed=each) for each in (True, False))
    assert len(packed) == -(-sum(cost) // 128) < len(padded)

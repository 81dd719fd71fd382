"""However rollouts are padded, ordered, chunked or spread over ranks, DelTA's coefficients stay; and wrong versions are rejected."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce as fold
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from laws.delta_cases import Case, Law, assert_near, coefficients, tokens_of
from tokencredit.credit import CreditInputs

PER_RESPONSE = ("advantage", "mask", "group", "tokens", "logp", "hidden")


def law_padding_is_never_read(delta: SimpleNamespace, case: Case) -> None:
    def padded(tensor: Tensor, garbage: float) -> Tensor:
        width = tensor.new_full((tensor.shape[0], 2, *tensor.shape[2:]), garbage)
        return torch.cat([width, tensor, width], dim=1)

    nan = float("nan")
    inputs = case.inputs._replace(
        mask=padded(case.inputs.mask, False),
        tokens=padded(case.inputs.tokens, -1),
        logp=padded(case.inputs.logp, nan),
        hidden=padded(case.inputs.hidden, nan),
    )
    for proxy in ("row", "hidden-gradient", "head"):
        expected = coefficients(delta, case.inputs, proxy=proxy, **case.knobs)
        assert torch.equal(coefficients(delta, inputs, proxy=proxy, **case.knobs), padded(expected, 0.0))


def law_responses_may_be_permuted(delta: SimpleNamespace, case: Case) -> None:
    order = torch.randperm(len(case.inputs.mask), generator=case.draw)
    permuted = case.inputs._replace(**{name: getattr(case.inputs, name)[order] for name in PER_RESPONSE})
    for name in ("batch", "group"):
        expected = coefficients(delta, case.inputs, scope=name, **case.knobs)[order]
        assert_near(coefficients(delta, permuted, scope=name, **case.knobs), expected)


def law_groups_stand_alone_in_group_scope(delta: SimpleNamespace, case: Case) -> None:
    """What other groups hold changes nothing: their hidden states may be anything."""
    others = (case.inputs.group != 0)[:, None, None]
    changed = case.inputs._replace(hidden=case.inputs.hidden.where(~others, 9.0))
    one, two = (coefficients(delta, inputs, scope="group", **case.knobs) for inputs in (case.inputs, changed))
    assert torch.equal(one[case.inputs.group == 0], two[case.inputs.group == 0])


def law_chunks_change_nothing(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    ids, head = case.inputs.tokens[case.inputs.mask], case.inputs.head
    for score in ("contrast", "own-side"):
        options = delta.DeltaOptions(score=score, **case.knobs)
        for whole in (delta.DenseVectors(vectors), delta.HeadVectors(vectors, ids, head, 1.0)):
            expected = delta.scope_coefficients(whole, advantage, options).coefficient
            for size in (1, 3):
                assert_near(delta.scope_coefficients(replace(whole, chunk=size), advantage, options).coefficient, expected)


def law_accumulators_may_be_fed_and_merged_in_any_order(delta: SimpleNamespace, case: Case) -> None:
    vectors, advantage = tokens_of(case)
    share = torch.rand(len(vectors), generator=case.draw, dtype=torch.float64)
    ids = case.inputs.tokens[case.inputs.mask]
    evidence: dict[Any, Callable[[Tensor], tuple[Any, ...]]] = {
        delta.CentroidSums: lambda at: (delta.DenseVectors(vectors[at]), advantage[at], share[at]),
        delta.MarginMoments: lambda at: (vectors[at, 0], advantage[at]),
        delta.ScoreMass: lambda at: (share[at],),
        delta.ScopeIds: lambda at: (ids[at],),
    }
    everything = torch.randperm(len(vectors), generator=case.draw)
    pieces = everything.tensor_split([1, 1, len(vectors) // 2])
    for accumulator, of in evidence.items():
        whole = accumulator().add(*of(everything.sort().values)).finish()
        fed = fold(lambda sofar, piece, of=of: sofar.add(*of(piece)), pieces, accumulator())
        merged = fold(lambda one, two: one.merge(two), [accumulator().add(*of(piece)) for piece in reversed(pieces)])
        assert_near(fed.finish(), whole)
        assert_near(merged.finish(), whole)


def on_two_ranks(delta: SimpleNamespace, inputs: CreditInputs, cut: int, **knobs: Any) -> Tensor:
    """Rows before and after `cut` in two threads that exchange accumulators; a rank left waiting for a reduction fails."""
    inboxes = SimpleQueue(), SimpleQueue()

    def run_rank(rank: int) -> Tensor:
        def exchange(accumulator: Any) -> Any:
            inboxes[1 - rank].put(accumulator)
            received = inboxes[rank].get(timeout=20)
            assert received is not None, "one rank reduces more often than the other"
            return received.merge(accumulator) if rank else accumulator.merge(received)

        rows = slice(cut, None) if rank else slice(0, cut)
        try:
            own = inputs._replace(**{name: getattr(inputs, name)[rows] for name in PER_RESPONSE})
            return coefficients(delta, own, reduce=exchange, **knobs)
        finally:
            inboxes[1 - rank].put(None)

    with ThreadPoolExecutor(2) as pool:
        return torch.cat(list(pool.map(run_rank, (0, 1))))


def law_two_ranks_agree_with_one(delta: SimpleNamespace, case: Case) -> None:
    """Groups are rows 0-2, 3-5, ...: a cut at 1 makes one straddle, and leaves rank 0 without any token of the others."""
    for name, proxy, cut in (("batch", "row", 1), ("group", "row", 1), ("batch", "head", 0), ("group", "head", 4)):
        knobs = {"scope": name, "proxy": proxy, **case.knobs}
        assert_near(on_two_ranks(delta, case.inputs, cut, **knobs), coefficients(delta, case.inputs, **knobs))


CUT_LAWS: dict[Law, list[str]] = {
    law_padding_is_never_read: ["padding is valid"],
    law_responses_may_be_permuted: ["batch scope cut by row number"],
    law_groups_stand_alone_in_group_scope: ["group scope pools the batch"],
    law_chunks_change_nothing: ["a chunk replaces the sum before it", "a chunk's norm is its first token's"],
    law_accumulators_may_be_fed_and_merged_in_any_order: [
        "a chunk replaces the sum before it",
        "merged masses forget a rank",
        "merged means unweighted",
        "merged deviations forget the gap",
        "merged counts forget a rank",
        "only scopes on every rank",
    ],
    law_two_ranks_agree_with_one: [
        "each rank its own scopes",
        "each rank its own temperature",
        "each rank its own refined centroids",
        "each rank its own mean",
        "only scopes on every rank",
    ],
}

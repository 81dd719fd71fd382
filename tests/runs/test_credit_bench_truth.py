"""Truth where it is known: prefix values by enumeration, and what the estimate says of its own noise."""

import pytest
import torch

from lab.first_token_decides import FirstTokenDecides, LastTokenDecides, every_value, subject
from tokencredit.lab.credit.agreement import corrected_square
from tokencredit.lab.credit.batch import SampledBatch, draw_batch, truth_of
from tokencredit.lab.credit.measure import Subject
from tokencredit.lab.credit.prefix_tree import Request, Tail, Truth, measure_truth

CONTINUATIONS = 24


def nobody(done: int, total: int) -> None:
    """Is told."""


def exact(world: Subject, batch: SampledBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """True advantage and true value after every token."""
    rollouts = batch.rollouts
    advantage, after = (torch.full(rollouts.mask.shape, torch.nan, dtype=torch.float64) for _ in range(2))
    known = [every_value(world.policy, world.task, problem) for problem in batch.problems]
    for row, group in enumerate(rollouts.group.tolist()):
        tokens = tuple(rollouts.tokens[row][rollouts.mask[row]].tolist())
        for place in range(len(tokens)):
            after[row, place] = known[group][tokens[: place + 1]]
            advantage[row, place] = after[row, place] - known[group][tokens[:place]]
    return advantage, after


@pytest.fixture(scope="module")
def measured() -> tuple[SampledBatch, Truth, torch.Tensor, torch.Tensor]:
    world = subject(group_size=6)._replace(task=LastTokenDecides())
    batch = draw_batch(*world, prompts=40, purpose="truth")
    truth = truth_of(*world[:2], batch, world.config, continuations=CONTINUATIONS, seed=1, notify=nobody)
    return batch, truth, *exact(world, batch)


def test_the_estimate_is_right_within_the_noise_it_admits(measured: tuple[SampledBatch, Truth, torch.Tensor, torch.Tensor]) -> None:
    batch, truth, advantage, after = measured
    mask = batch.rollouts.mask
    assert bool(truth.advantage[mask].isfinite().all())
    assert bool(truth.advantage[~mask].isnan().all())
    uncertain = mask & (batch.evidence.logp.exp() < 0.99)
    error = (truth.advantage - advantage)[uncertain]
    variance = truth.variance[uncertain]
    # Unbiased, and its own variance is neither too small nor too large.
    assert abs(float(error.mean())) < 4 * float(variance.mean().sqrt()) / len(error) ** 0.5
    assert float(error.square().mean() / variance.mean()) == pytest.approx(1, abs=0.25)
    # Knowing p makes it far better than the difference of two independent means.
    assert float(error.square().mean()) < 0.6 * 2 * 0.25 / CONTINUATIONS
    valued = uncertain & (truth.value_error > 0)
    gap = ((truth.value_after - after) / truth.value_error)[valued]
    assert float(gap.square().mean()) == pytest.approx(1, abs=0.35)


def test_noise_is_taken_out_of_the_sum_of_squares(measured: tuple[SampledBatch, Truth, torch.Tensor, torch.Tensor]) -> None:
    batch, truth, advantage, _ = measured
    mask = batch.rollouts.mask
    true = float(advantage[mask].square().sum())
    assert float(truth.advantage[mask].square().sum()) > 1.03 * true
    assert float(corrected_square(truth.advantage[mask], truth.variance[mask]).sum()) == pytest.approx(true, rel=0.03)


def test_siblings_share_prefixes_and_prefixes_hand_on_their_continuations(
    measured: tuple[SampledBatch, Truth, torch.Tensor, torch.Tensor],
) -> None:
    batch, truth, _, _ = measured
    rollouts = batch.rollouts
    rows = [tuple(row[kept].tolist()) for row, kept in zip(rollouts.tokens, rollouts.mask, strict=True)]
    certain = batch.evidence.logp.exp() >= 0.99
    different = {
        (group, row[: place + 1])
        for number, (row, group) in enumerate(zip(rows, rollouts.group.tolist(), strict=True))
        for place in range(len(row) - 1)
        if not certain[number, place]
    }
    assert truth.prefixes == len(different) + len(batch.problems)
    assert truth.continuations < truth.prefixes * CONTINUATIONS


def test_a_token_that_is_nearly_certain_is_not_measured() -> None:
    asked: list[Request] = []

    def draw(requests: list[Request]) -> list[list[Tail]]:
        asked.extend(requests)
        return [[Tail((7, 8), 1.0), Tail((7, 9), 0.0)] * (one.lacking // 2) for one in requests]

    tokens, mask = torch.tensor([[7, 8], [7, 9]]), torch.ones(2, 2, dtype=torch.bool)
    logp = torch.tensor([[0.995, 0.5], [0.995, 0.5]]).log()
    truth = measure_truth(tokens, mask, torch.tensor([0, 0]), logp, torch.tensor([1.0, 0.0]), draw, continuations=10)
    assert asked == [Request(0, (), 10)]
    assert truth.advantage.tolist() == [[0.0, pytest.approx(0.5)], [0.0, pytest.approx(-0.5)]]
    assert truth.value_after.tolist() == [[0.5, 1.0], [0.5, 0.0]]
    assert (truth.prefixes, truth.continuations, truth.prompt_value.tolist()) == (1, 10, [0.5])


def test_what_a_certain_token_did_not_hand_on_is_drawn_again_before_the_next_choice() -> None:
    asked: list[Request] = []

    def draw(requests: list[Request]) -> list[list[Tail]]:
        asked.extend(requests)
        # Of the prompt's continuations none begins as the response does, however probable that was.
        tails = {(): (Tail((6,), 0.0),) * 2, (7,): (Tail((8,), 1.0), Tail((9,), 0.0))}
        return [list(tails[one.prefix] * (one.lacking // 2)) for one in requests]

    tokens, mask = torch.tensor([[7, 8]]), torch.ones(1, 2, dtype=torch.bool)
    logp = torch.tensor([[0.995, 0.25]]).log()
    truth = measure_truth(tokens, mask, torch.tensor([0]), logp, torch.tensor([1.0]), draw, continuations=10)
    assert asked == [Request(0, (), 10), Request(0, (7,), 10)]
    assert truth.advantage.tolist() == [[0.0, pytest.approx(0.75)]]
    assert truth.continuations == 20


def test_an_ungraded_response_has_no_last_advantage() -> None:
    tokens, mask = torch.tensor([[7, 8]]), torch.ones(1, 2, dtype=torch.bool)

    def draw(requests: list[Request]) -> list[list[Tail]]:
        return [[Tail((7, 8)[len(one.prefix) :], 1.0), Tail((6,), 0.0)] * 5 for one in requests]

    truth = measure_truth(
        tokens, mask, torch.tensor([0]), torch.tensor([[0.5, 0.5]]).log(), torch.tensor([torch.nan]), draw, continuations=10
    )
    assert truth.advantage[0].isnan().tolist() == [False, True]


def test_only_what_decides_has_an_advantage() -> None:
    world = subject()
    assert isinstance(world.task, FirstTokenDecides)
    batch = draw_batch(*world, prompts=6, purpose="truth")
    truth = truth_of(*world[:2], batch, world.config, continuations=16, seed=1, notify=nobody)
    later = batch.rollouts.mask.clone()
    later[:, 0] = False
    assert float(truth.advantage[later].abs().max()) == 0
    assert float(truth.advantage[:, 0].abs().mean()) > 0.1

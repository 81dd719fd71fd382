"""The loss of one optimizer step: its gradient is kappa, and its shares sum to the whole however rows are cut and wherever they lie."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from engine.training_cases import (
    AGGREGATIONS,
    CUTS,
    EVERY,
    SEED,
    UNGRADED,
    WHOLE_STEP,
    assert_near,
    dealt_shares,
    filler,
    gathered,
    made_up_step,
    share_of,
    whole_share,
)
from tiny import CONSTANT
from tokencredit import types
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline import microbatch
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.types import Aggregation


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_of_the_loss_is_kappa(name: str, aggregation: Aggregation) -> None:
    step, objective = made_up_step(aggregation), EVERY[name]
    batch = gathered(step, step.planned.rows, AggregatedObjective(objective, aggregation, CONSTANT))
    rows = batch.inputs.row
    inputs = batch.inputs._replace(logp=step.logp[rows, : batch.inputs.mask.shape[1]])
    statistic = microbatch.step_statistic(objective, [inputs])
    kappa, loss = token_kappa(objective, inputs, statistic, batch.weight, denominator=batch.denominator)
    share = share_of(step, [batch], objective)
    assert share.gradient.norm() > 1e-5
    assert float(share.loss) == pytest.approx(float(loss), rel=1e-14)
    assert_near(share.gradient[rows, : kappa.shape[1]], kappa)
    others = [row for row in range(len(step.logp)) if row not in step.planned.rows]
    assert not share.gradient[others].any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", EVERY)
def test_shares_sum_to_the_whole_over_micro_batches_and_ranks(name: str, aggregation: Aggregation) -> None:
    step = made_up_step(aggregation)
    whole = whole_share(step, EVERY[name], aggregation)
    for cut in CUTS if aggregation == "token-mean" else CUTS[-1:]:
        shares = dealt_shares(step, EVERY[name], aggregation, cut)
        assert_near(torch.stack([share.loss for share in shares]).sum(), whole.loss)
        assert_near(torch.stack([share.gradient for share in shares]).sum(0), whole.gradient)


@pytest.mark.parametrize("name", WHOLE_STEP)
def test_statistics_of_one_rank_would_give_another_loss(name: str) -> None:
    """So the law above is about something: a rank that looked at its own rows only would train on another loss."""
    step = made_up_step()
    whole = whole_share(step, EVERY[name], "token-mean")
    built = AggregatedObjective(EVERY[name], "token-mean", CONSTANT)
    apart = [share_of(step, [gathered(step, rows, built)], EVERY[name]) for rows in (step.planned.rows[::2], step.planned.rows[1::2])]
    assert (sum(share.gradient for share in apart) - whole.gradient).abs().max() > 1e-3 * whole.gradient.abs().max()


@pytest.mark.parametrize("name", EVERY)
def test_a_silenced_row_changes_nothing(name: str) -> None:
    step, built = made_up_step(), AggregatedObjective(EVERY[name], "token-mean", CONSTANT)
    rows = [gathered(step, step.planned.rows[:5], built), gathered(step, step.planned.rows[5:], built)]
    without = share_of(step, rows, EVERY[name])
    for place in range(3):
        among = share_of(step, [*rows[:place], filler(step, -9, built), filler(step, -3, built), *rows[place:]], EVERY[name])
        assert torch.equal(among.loss, without.loss)
        assert torch.equal(among.gradient, without.gradient)


@pytest.mark.parametrize("name", EVERY)
def test_a_step_of_nothing_but_silenced_rows_has_a_gradient_of_zero(name: str) -> None:
    """Every rank takes part in every optimizer step of an engine, also where the plan has fewer."""
    step, built = made_up_step(), AggregatedObjective(EVERY[name], "token-mean", CONSTANT)
    share = share_of(step, [filler(step, -1, built), filler(step, -2, built)], EVERY[name])
    assert float(share.loss) == 0.0
    assert not share.gradient.any()


def test_rows_are_gathered_with_their_credit_grade_and_scale() -> None:
    step = made_up_step()
    credited, rollouts = step.credited, step.credited.rollouts
    rows = (8, 2, UNGRADED, 0)
    inputs = gathered(step, rows, AggregatedObjective(EVERY["ppo-clip"], "sequence-mean", CONSTANT)).inputs
    for place, row in enumerate(rows):
        scale = 0.5 + row / 8
        width = inputs.mask.shape[1]
        assert inputs.mask[place].tolist() == rollouts.loss_mask[row, :width].tolist()
        assert_near(inputs.credit[place], credited.credit[row, :width] * scale)
        assert inputs.advantage is not None
        assert inputs.advantage[place].isnan() if row == UNGRADED else inputs.advantage[place] == credited.advantage[row] * scale
        assert (int(inputs.group[place]), inputs.seed) == (int(rollouts.group[row]), SEED)
        for name in ("old_logp", "reference_logp", "correction"):
            assert torch.equal(getattr(inputs, name)[place], getattr(credited, name)[row, :width])
    assert inputs.row is not None
    assert inputs.row.tolist() == list(rows)
    assert torch.equal(inputs.logp, inputs.old_logp)


def test_no_number_is_read_back_while_rows_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without numbers stand for those of a device that is still at work: reading one fails."""
    step, device = made_up_step(), torch.device("meta")
    monkeypatch.setattr(types, "_none_where", lambda *_: None)

    def elsewhere(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: elsewhere(getattr(value, field.name)) for field in fields(value)})
        return value.to(device) if isinstance(value, torch.Tensor) else value

    built = AggregatedObjective(EVERY["ppo-clip"], "sequence-mean", CONSTANT)
    rows = torch.tensor([8, 2, 0], device=device)
    made = microbatch.gather_rows(elsewhere(step.credited), step.planned, rows, built, width=3, seed=SEED)
    assert (made.inputs.credit.device, made.inputs.credit.shape) == (device, (3, 3))


def test_a_row_of_another_step_has_no_scale() -> None:
    step = made_up_step()
    assert 5 not in step.planned.rows
    inputs = gathered(step, (8, 5), AggregatedObjective(EVERY["ppo-clip"], "sequence-mean", CONSTANT)).inputs
    assert inputs.credit[0].isfinite().all()
    assert inputs.credit[1].isnan().all()


def test_a_weight_knows_the_whole_response_and_nothing_unscored() -> None:
    """A token that the sampler could not score is masked, though it is the response's first."""
    step = made_up_step("sequence-mean", scaled=False)
    made = gathered(step, (0, 1), AggregatedObjective(EVERY["ppo-clip"], "sequence-mean", CONSTANT))
    length = step.credited.rollouts.loss_mask.sum(-1)
    assert not made.inputs.mask[0, 0]
    assert_near(made.weight[0, 1], torch.ones((), dtype=torch.float64) / length[0])
    narrow = microbatch.gather_rows(
        step.credited,
        step.planned,
        torch.tensor([1]),
        AggregatedObjective(EVERY["ppo-clip"], "sequence-mean", CONSTANT),
        width=2,
        seed=SEED,
    )
    assert_near(narrow.weight[0], torch.ones(2, dtype=torch.float64) / length[1])
    assert made.denominator == len(step.planned.rows)


def test_every_optimizer_step_draws_by_itself() -> None:
    seeds = {microbatch.step_seed(seed, number) for seed in range(4) for number in range(4)}
    assert len(seeds) == 16
    assert microbatch.step_seed(3, 1) == microbatch.step_seed(3, 1)

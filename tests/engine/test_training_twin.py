"""An optimizer step cut and dealt to ranks, against a twin put together from the batch itself; and wrong versions that it notices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.training_cases import EVERY, SEED, UNGRADED, Share, Step, assert_near, dealt_shares, made_up_step
from laws.harness import Edit, loaded_with
from tokencredit.objective import Objective, TokenInputs
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline import microbatch
from tokencredit.types import Aggregation

MUTANTS: dict[str, Edit] = {
    "each rank its own statistic": Edit("pipeline.microbatch", "batches if ranks.count == 1 else", "batches if True else"),
    "a statistic of the first micro-batches": Edit("pipeline.microbatch", "ranks.gather(list(batches))", "ranks.gather(list(batches)[:1])"),
    "a denominator for each micro-batch": Edit("pipeline.microbatch", "/ batch.denominator", "/ max(1, int(batch.inputs.mask.sum()))"),
    "weights are left out": Edit("pipeline.microbatch", "masked_sum(batch.weight * token_loss", "masked_sum(token_loss"),
    "masked tokens count": Edit("pipeline.microbatch", "masked_sum(batch.weight * token_loss, batch.inputs.mask)", "token_loss.sum()"),
    "credit is not scaled": Edit("pipeline.microbatch", " * factor[:, None],", ","),
    "scales in the order of the batch": Edit("pipeline.microbatch", "scales[list(step.rows)] =", "scales[sorted(step.rows)] ="),
    "the ungraded have a say": Edit("pipeline.microbatch", ".where(credited.scored.graded[rows], torch.nan)", ""),
    "rows are counted anew": Edit("pipeline.microbatch", "row=rows,", "row=torch.arange(len(rows)),"),
    "lengths of what is shown": Edit(
        "pipeline.microbatch", "token_weight(inputs.mask, mask.sum(-1)", "token_weight(inputs.mask, inputs.mask[:, :4].sum(-1)"
    ),
    "unscored tokens are trained on": Edit("pipeline.microbatch", "mask = rollouts.loss_mask[rows]", "mask = rollouts.mask[rows]"),
    "no correction": Edit("pipeline.microbatch", "correction=in_batch(credited.correction)", "correction=torch.ones_like(old_logp)"),
}


def twin_share(step: Step, objective: Objective, aggregation: Aggregation) -> Share:
    """The whole step put together here, from the batch itself."""
    credited, planned = step.credited, step.planned
    rows = list(planned.rows)
    assert planned.credit_scale is not None
    assert credited.correction is not None
    assert credited.reference_logp is not None
    scale = torch.tensor(planned.credit_scale, dtype=torch.float64)
    mask = credited.rollouts.mask[rows] & ~credited.rollouts.behavior_logp[rows].isnan()
    advantage = torch.tensor([credited.advantage[row] if row != UNGRADED else torch.nan for row in rows], dtype=torch.float64)
    inputs = TokenInputs(
        logp=step.logp[rows],
        old_logp=credited.old_logp[rows],
        credit=credited.credit[rows] * scale[:, None],
        mask=mask,
        group=credited.rollouts.group[rows],
        reference_logp=credited.reference_logp[rows],
        advantage=advantage * scale,
        row=torch.tensor(rows),
        seed=SEED,
        correction=credited.correction[rows],
    )
    weight = mask.double() / mask.sum(-1).clamp(min=1)[:, None] if aggregation == "sequence-mean" else mask.double()
    statistic = None
    if objective.statistic is not None:
        accumulator = objective.statistic()
        accumulator.add(inputs)
        statistic = accumulator.finish()
    kappa, loss = token_kappa(objective, inputs, statistic, weight, denominator=planned.denominator)
    gradient = torch.zeros_like(step.logp)
    gradient[rows] = kappa
    return Share(loss.double(), gradient)


def check_against_twin(name: str, aggregation: Aggregation, code: Any) -> None:
    step = made_up_step(aggregation)
    expected = twin_share(step, EVERY[name], aggregation)
    shares = dealt_shares(step, EVERY[name], aggregation, (2, 3), code)
    assert_near(torch.stack([share.loss for share in shares]).sum(), expected.loss)
    assert_near(torch.stack([share.gradient for share in shares]).sum(0), expected.gradient)


TWINS: list[tuple[str, Aggregation]] = [
    ("ppo-clip", "token-mean"),
    ("ppo-clip", "sequence-mean"),
    ("corrected clip with kl", "constant"),
    ("dfpo", "token-mean"),
    ("clip-cov", "token-mean"),
    ("kl-cov", "token-mean"),
]


@pytest.mark.parametrize(("name", "aggregation"), TWINS)
def test_the_step_is_that_of_a_twin_put_together_by_hand(name: str, aggregation: Aggregation) -> None:
    check_against_twin(name, aggregation, microbatch)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_versions_are_noticed(mutant: str) -> None:
    code = loaded_with(["pipeline.microbatch"], MUTANTS[mutant])

    def noticed(check: Callable[[], None]) -> bool:
        try:
            check()
        except (AssertionError, ValueError):
            return True
        return False

    assert any(noticed(lambda name=name, how=how: check_against_twin(name, how, code)) for name, how in TWINS)

"""One optimizer step with everything that may go wrong in it, and its loss as an engine finds it: cut, dealt to ranks, differentiated."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.threaded_ranks import on_ranks
from tiny import CONSTANT, made_up_credit, made_up_rollouts
from tokencredit.batching import step_denominator
from tokencredit.forward.padded import response_extent
from tokencredit.objective import OBJECTIVES, Objective, correction_weight, with_correction, with_kl
from tokencredit.pipeline import microbatch
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.distributed import SINGLE_PROCESS, ProcessGroup, deal_micro_batches
from tokencredit.pipeline.microbatch import MicroBatch
from tokencredit.types import Aggregation, Credited, PlannedStep

SEED, UNGRADED = 5, 4
AGGREGATIONS: tuple[Aggregation, ...] = ("token-mean", "sequence-mean", "constant")
WHOLE_STEP: dict[str, Objective] = {
    "dfpo": OBJECTIVES["dfpo"](),
    "dfpo orthogonal": OBJECTIVES["dfpo"](transform="orthogonal", weight="product"),
    "dfpo fold-length": OBJECTIVES["dfpo"](transform="none", fold_length=True),
    "clip-cov": OBJECTIVES["clip-cov"](share=0.15, cov_low=0.01, cov_high=9.0),
    "kl-cov": OBJECTIVES["kl-cov"](share=0.2),
}
"""Objectives that look at all rows of a step before the first is used."""
EVERY: dict[str, Objective] = {
    **{name: make() for name, make in OBJECTIVES.items()},
    **WHOLE_STEP,
    "gspo sequence": OBJECTIVES["gspo"](form="sequence"),
    "corrected clip with kl": with_kl(with_correction(OBJECTIVES["ppo-clip"]()), beta=0.3, estimator="k3"),
}
CUTS = [(1, 1), (1, 4), (2, 1), (2, 3), (3, 5)]
"""Ranks, and micro-batches of each; three times five leave some empty."""


class Step(NamedTuple):
    credited: Credited
    planned: PlannedStep
    logp: Tensor
    """Of the policy that is trained, for every row."""


def made_up_step(aggregation: Aggregation = "token-mean", *, scaled: bool = True) -> Step:
    """Nine of twelve rows: an empty one, one with a hole, an ungraded one, groups in part, credit scaled by row."""
    credited = made_up_credit(made_up_rollouts())
    rollouts, draw = credited.rollouts, torch.Generator().manual_seed(8)
    score = credited.scored.score.clone()
    score[UNGRADED] = torch.nan
    graded = (~score.isnan())[:, None]
    noise = torch.randn(credited.old_logp.shape, generator=draw, dtype=torch.float64)
    credited = replace(
        credited,
        scored=replace(credited.scored, score=score, reward=score),
        advantage=credited.advantage.where(graded[:, 0], 0.0),
        credit=credited.credit.where(graded, 0.0),
        correction=correction_weight(credited.old_logp, credited.old_logp + 0.4 * noise.flip(0), rollouts.loss_mask, kind="tis"),
    )
    rows = (2, 0, 1, 3, 4, 6, 7, 8, 10)
    length = rollouts.loss_mask.sum(-1)[list(rows)].tolist()
    planned = PlannedStep(
        micro_batches=(rows,),
        denominator=step_denominator(length, aggregation=aggregation, constant_length=CONSTANT),
        prompts=4,
        tokens=sum(length),
        credit_scale=tuple(0.5 + row / 8 for row in rows) if scaled else None,
    )
    logp = credited.old_logp + 0.25 * noise
    # Less probable than any sibling: with a say, it would be the minimum of its group's weights.
    logp[UNGRADED] -= 1.0
    return Step(credited, planned, logp)


def gathered(step: Step, rows: Sequence[int], built: AggregatedObjective, code: Any = microbatch) -> MicroBatch:
    """As wide as its rows need."""
    index = torch.tensor(rows, dtype=torch.long)
    width = max(1, int(response_extent(step.credited.rollouts.mask[index]).max()))
    return code.gather_rows(step.credited, step.planned, index, built, width=width, seed=SEED)


def filler(step: Step, name: int, built: AggregatedObjective, code: Any = microbatch) -> MicroBatch:
    """For a rank that has no row left: any row, without mask and weight, under a name that no row has."""
    made: MicroBatch = gathered(step, (7,), built, code)
    named = torch.full_like(made.inputs.group, name)
    inputs = made.inputs._replace(mask=torch.zeros_like(made.inputs.mask), row=named, group=named)
    return made._replace(inputs=inputs, weight=torch.zeros_like(made.weight))


class Share(NamedTuple):
    loss: Tensor
    gradient: Tensor
    """By the log-prob of every token of the batch."""


def share_of(
    step: Step, batches: Sequence[MicroBatch], objective: Objective, ranks: ProcessGroup = SINGLE_PROCESS, code: Any = microbatch
) -> Share:
    """The part of a step that these micro-batches are, as an engine finds it: by differentiating the loss."""

    def logp_of(batch: MicroBatch) -> Tensor:
        rows = batch.inputs.row
        assert rows is not None
        return step.logp[rows.clamp(min=0), : batch.inputs.mask.shape[1]]

    statistic = code.step_statistic(objective, [batch.inputs._replace(logp=logp_of(batch)) for batch in batches], ranks)
    leaf = step.logp.clone().requires_grad_()
    shares = []
    for batch in batches:
        rows = batch.inputs.row
        assert rows is not None
        shares.append(code.micro_batch_loss(objective, batch, leaf[rows.clamp(min=0), : batch.inputs.mask.shape[1]], statistic))
    loss = torch.stack(shares).sum()
    return Share(loss.detach(), torch.autograd.grad(loss, leaf)[0])


def whole_share(step: Step, objective: Objective, aggregation: Aggregation) -> Share:
    built = AggregatedObjective(objective, aggregation, CONSTANT)
    return share_of(step, [gathered(step, step.planned.rows, built)], objective)


def dealt_shares(step: Step, objective: Objective, aggregation: Aggregation, cut: tuple[int, int], code: Any = microbatch) -> list[Share]:
    """One for each rank; micro-batches without rows are filled."""
    ranks_count, micro_batches = cut
    built = AggregatedObjective(objective, aggregation, CONSTANT)
    cost = response_extent(step.credited.rollouts.mask).tolist()
    dealt = deal_micro_batches(step.planned.rows, cost, ranks=ranks_count, micro_batches=micro_batches)

    def own(ranks: ProcessGroup) -> Share:
        batches = [
            gathered(step, rows, built, code) if rows else filler(step, -1 - number * ranks_count - ranks.index, built, code)
            for number, rows in enumerate(dealt[ranks.index])
        ]
        return share_of(step, batches, objective, ranks, code)

    return on_ranks(ranks_count, own)


def assert_near(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)

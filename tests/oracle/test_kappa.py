"""kappa = d loss / d logp of every token, against numerical slopes of aggregated losses written in plain Python."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tokencredit.objective import OBJECTIVES, Objective, TokenInputs
from tokencredit.objective.kappa import token_kappa

ROWS, WIDTH, CONSTANT = 7, 6, 9.0
NUDGE = 1e-5
AGGREGATIONS = ("token-mean", "sequence-mean", "constant")
Table = list[list[float]]


class Step(NamedTuple):
    """One optimizer step in plain numbers; `mask` has holes, row 3 has no tokens, group 5 has no advantage."""

    logp: Table
    old_logp: Table
    credit: Table
    advantage: list[float]
    mask: list[list[bool]]
    group: list[int]

    def inputs(self) -> TokenInputs:
        logp, old_logp, credit, advantage = (torch.tensor(values, dtype=torch.float64) for values in self[:4])
        mask, group = torch.tensor(self.mask), torch.tensor(self.group)
        return TokenInputs(logp, old_logp, credit, mask, group, advantage=advantage, row=torch.arange(ROWS) + 20)

    def tokens(self, row: int) -> list[int]:
        return [t for t in range(WIDTH) if self.mask[row][t]]

    def weights(self, aggregation: str) -> tuple[Table, float]:
        """What a token's loss is multiplied by, and what all are divided by."""
        lengths = [len(self.tokens(row)) for row in range(ROWS)]
        share = [1 / max(1, length) if aggregation == "sequence-mean" else 1.0 for length in lengths]
        denominator = {"token-mean": float(sum(lengths)), "sequence-mean": float(ROWS), "constant": CONSTANT * ROWS}[aggregation]
        return [[share[row] * self.mask[row][t] for t in range(WIDTH)] for row in range(ROWS)], denominator


def random_step(seed: int) -> Step:
    draw = torch.Generator().manual_seed(seed)
    lengths = [6, 4, 5, 0, 1, 6, 3]
    advantage = torch.randn(ROWS, generator=draw, dtype=torch.float64)
    advantage[5:] = 0.0
    old_logp = -2 + torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64)
    coefficient = torch.rand(ROWS, WIDTH, generator=draw, dtype=torch.float64)
    return Step(
        logp=(old_logp + 0.4 * torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64)).tolist(),
        old_logp=old_logp.tolist(),
        credit=(coefficient * advantage[:, None]).tolist(),
        advantage=advantage.tolist(),
        mask=[[t < length and float(torch.rand((), generator=draw)) > 0.15 for t in range(WIDTH)] for length in lengths],
        group=[4, 4, 4, 4, 8, 5, 5],
    )


# --- losses in plain Python: (step, log-probs to differentiate by) -> loss of each token. What has no gradient is read from `step`.

TokenLoss = Callable[[Step, Table, int, int], float]


def clipped(ratio: float, credit: float, low: float, high: float) -> float:
    return min(ratio * credit, min(max(ratio, 1 - low), 1 + high) * credit)


def naive_ppo_clip(step: Step, logp: Table, row: int, t: int) -> float:
    ratio, credit = math.exp(logp[row][t] - step.old_logp[row][t]), step.credit[row][t]
    surrogate = clipped(ratio, credit, 0.2, 0.28)
    return -(max(surrogate, 2.0 * credit) if credit < 0 else surrogate)


def mean_drift(step: Step, logp: Table, row: int) -> float:
    return sum(logp[row][t] - step.old_logp[row][t] for t in step.tokens(row)) / max(1, len(step.tokens(row)))


def naive_gspo(step: Step, logp: Table, row: int, t: int, *, form: str) -> float:
    ratio = math.exp(mean_drift(step, logp, row))
    if form == "token":
        ratio = math.exp(mean_drift(step, step.logp, row)) * math.exp(logp[row][t] - step.logp[row][t])
    return -clipped(ratio, step.credit[row][t], 0.1, 0.15)


def naive_dfpo(step: Step, logp: Table, row: int, t: int, *, transform: str) -> float:
    def weight(other: int) -> float:
        return math.exp(mean_drift(step, step.logp, other))

    siblings = [other for other in range(ROWS) if step.group[other] == step.group[row]]
    if transform == "min-replace":
        changed = min(weight(other) for other in siblings if step.tokens(other))
    else:
        length = sum(step.advantage[other] ** 2 for other in siblings)
        overlap = sum(step.advantage[other] * weight(other) for other in siblings)
        changed = weight(row) - (overlap / length * step.advantage[row] if length else 0.0)
    return -changed * step.credit[row][t] * logp[row][t]


CASES: dict[str, tuple[Objective, TokenLoss]] = {
    "ppo-clip": (OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.28, dual_clip=2.0), naive_ppo_clip),
    **{
        f"gspo {form}": (OBJECTIVES["gspo"](clip_low=0.1, clip_high=0.15, form=form), partial(naive_gspo, form=form))
        for form in ("token", "sequence")
    },
    **{
        f"dfpo {transform}": (OBJECTIVES["dfpo"](transform=transform), partial(naive_dfpo, transform=transform))
        for transform in ("min-replace", "orthogonal")
    },
}


def naive_loss(step: Step, logp: Table, token_loss: TokenLoss, aggregation: str) -> float:
    weight, denominator = step.weights(aggregation)
    tokens = [(row, t) for row in range(ROWS) for t in step.tokens(row)]
    return math.fsum(weight[row][t] * token_loss(step, logp, row, t) for row, t in tokens) / denominator


def naive_kappa(step: Step, token_loss: TokenLoss, aggregation: str) -> Table:
    def moved(row: int, t: int, by: float) -> float:
        logp = [list(values) for values in step.logp]
        logp[row][t] += by
        return naive_loss(step, logp, token_loss, aggregation)

    return [[(moved(row, t, NUDGE) - moved(row, t, -NUDGE)) / (2 * NUDGE) for t in range(WIDTH)] for row in range(ROWS)]


def statistic_of(objective: Objective, inputs: TokenInputs) -> Any:
    if objective.statistic is None:
        return None
    accumulator = objective.statistic()
    accumulator.add(inputs)
    return accumulator.finish()


def kappa_of(objective: Objective, inputs: TokenInputs, step: Step, aggregation: str):
    weight, denominator = step.weights(aggregation)
    return token_kappa(
        objective, inputs, statistic_of(objective, inputs), torch.tensor(weight, dtype=torch.float64), denominator=denominator
    )


@pytest.mark.parametrize(("name", "aggregation"), product(CASES, AGGREGATIONS))
def test_kappa_is_the_slope_of_the_aggregated_loss(name: str, aggregation: str) -> None:
    objective, token_loss = CASES[name]
    for seed in range(3):
        step = random_step(seed)
        inputs = step.inputs()
        kappa, loss = kappa_of(objective, inputs, step, aggregation)
        expected = torch.tensor(naive_kappa(step, token_loss, aggregation), dtype=torch.float64)
        assert float(expected.abs().max()) > 1e-3
        torch.testing.assert_close(kappa, expected, rtol=1e-7, atol=1e-9)
        assert loss == pytest.approx(naive_loss(step, step.logp, token_loss, aggregation), rel=1e-12)


def test_some_tokens_are_clipped_and_some_are_not() -> None:
    """Otherwise the slopes above would leave clipping untested."""
    objective, _ = CASES["ppo-clip"]
    steps = [random_step(seed) for seed in range(3)]
    slopes = torch.cat([kappa_of(objective, step.inputs(), step, "constant").kappa for step in steps])
    credited = torch.cat([step.inputs().mask & (step.inputs().credit != 0) for step in steps])
    assert 0.05 < float((slopes[credited] == 0).double().mean()) < 0.6


@pytest.mark.parametrize("name", CASES)
def test_outside_the_mask_there_is_nothing_whatever_stands_there(name: str) -> None:
    objective, _ = CASES[name]
    step = random_step(0)
    inputs = step.inputs()
    outside = ~inputs.mask
    rubbish = inputs._replace(logp=inputs.logp.where(inputs.mask, 1e3), credit=inputs.credit.where(inputs.mask, -1e6))
    clean = kappa_of(objective, inputs, step, "sequence-mean")
    weight, denominator = step.weights("sequence-mean")
    heavy = torch.tensor(weight, dtype=torch.float64).where(inputs.mask, 9.0)
    dirty = token_kappa(objective, rubbish, statistic_of(objective, rubbish), heavy, denominator=denominator)
    assert outside.any()
    assert not dirty.kappa[outside].any()
    assert torch.equal(clean.kappa, dirty.kappa)
    assert clean.loss == dirty.loss


def test_gradient_mode_and_graph_of_the_caller_do_not_matter() -> None:
    """Engines gather under no_grad and audits pass leaves of their own; neither receives a gradient from here."""
    objective, _ = CASES["ppo-clip"]
    step = random_step(1)
    inputs = step.inputs()
    expected = kappa_of(objective, inputs, step, "token-mean")
    with torch.no_grad():
        assert torch.equal(kappa_of(objective, inputs, step, "token-mean").kappa, expected.kappa)
    leaf = inputs.logp.clone().requires_grad_()
    found = kappa_of(objective, inputs._replace(logp=leaf * 1.0), step, "token-mean")
    assert torch.equal(found.kappa, expected.kappa)
    assert not found.kappa.requires_grad
    assert leaf.grad is None


def test_the_denominator_divides_loss_and_kappa() -> None:
    objective, _ = CASES["gspo token"]
    inputs = random_step(2).inputs()
    weight = inputs.mask.double()
    whole, half = (token_kappa(objective, inputs, None, weight, denominator=by) for by in (3.0, 6.0))
    torch.testing.assert_close(whole.kappa, 2 * half.kappa, rtol=1e-14, atol=0)
    assert float(whole.loss) == pytest.approx(2 * float(half.loss), rel=1e-14)


OTHER_LEAF = torch.ones((), dtype=torch.float64).requires_grad_()


def constant(inputs: TokenInputs, statistic: None) -> Tensor:
    return 2.0 * inputs.credit


def of_something_else(inputs: TokenInputs, statistic: None) -> Tensor:
    return 2.0 * inputs.credit * OTHER_LEAF


@pytest.mark.parametrize("token_loss", [constant, of_something_else])
def test_a_loss_that_does_not_depend_on_log_probs_has_no_slope(token_loss: Callable[..., Tensor]) -> None:
    step = random_step(0)
    kappa, loss = kappa_of(Objective(token_loss=token_loss), step.inputs(), step, "constant")
    assert torch.equal(kappa, torch.zeros(ROWS, WIDTH, dtype=torch.float64))
    total = math.fsum(step.credit[row][t] for row in range(ROWS) for t in step.tokens(row))
    assert loss == pytest.approx(2 * total / (CONSTANT * ROWS), rel=1e-12)
    assert OTHER_LEAF.grad is None

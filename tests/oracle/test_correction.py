"""Correction weights and mismatch statistics against plain loops; what they do to a loss, and what they leave alone."""

import math
import random
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tokencredit.objective import OBJECTIVES, Objective, TokenInputs, with_correction, with_kl
from tokencredit.objective.base import kl_estimate
from tokencredit.objective.correction import correction_weight, mismatch, sampler_ratio

WIDTH = 6
BOUNDS = [(2.0, 0.0), (1.5, 0.5), (1.0, 1.0), (5.0, 0.0)]


def random_batch(seed: int, gap: float) -> tuple[list[list[float]], list[list[float]], list[list[bool]]]:
    """Uneven lengths, holes, a response without tokens; the sampler could not score (NaN) some of what the mask leaves out."""
    draw = random.Random(f"{seed} {gap}")
    old, behavior, mask = [], [], []
    for length in (6, 3, 0, 1, 5):
        mask.append([t < length and draw.random() < 0.8 for t in range(WIDTH)])
        old.append([-draw.uniform(0.01, 4) for _ in range(WIDTH)])
        behavior.append([old[-1][t] + draw.uniform(-gap, gap) if mask[-1][t] or draw.random() < 0.5 else math.nan for t in range(WIDTH)])
    return old, behavior, mask


def naive_ratio(old: list[list[float]], behavior: list[list[float]], mask: list[list[bool]], level: str) -> list[list[float]]:
    ratio = [[1.0] * WIDTH for _ in old]
    for i in range(len(old)):
        total = sum(old[i][t] - behavior[i][t] for t in range(WIDTH) if mask[i][t])
        for t in range(WIDTH):
            if mask[i][t]:
                gap = total if level == "sequence" else old[i][t] - behavior[i][t]
                ratio[i][t] = math.exp(max(-20.0, min(20.0, gap)))
    return ratio


def naive_weight(ratio: float, kind: str, cap: float, floor: float) -> float:
    if kind == "none":
        return 1.0
    if floor <= ratio <= cap:
        return ratio
    if kind == "mis":
        return 0.0
    return cap if ratio > cap else floor


def tensors(*tables: list[list[float]]) -> list[Tensor]:
    return [torch.tensor(table, dtype=torch.float64) for table in tables]


@pytest.mark.parametrize("gap", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize(("cap", "floor"), BOUNDS)
@pytest.mark.parametrize(("kind", "level"), product(["none", "tis", "mis"], ["token", "sequence"]))
def test_correction_weight(kind: str, level: str, cap: float, floor: float, gap: float) -> None:
    for seed in range(4):
        old, behavior, mask = random_batch(seed, gap)
        ratio = naive_ratio(old, behavior, mask, level)
        expected = [[naive_weight(ratio[i][t], kind, cap, floor) * mask[i][t] for t in range(WIDTH)] for i in range(len(old))]
        weight = correction_weight(*tensors(old, behavior), torch.tensor(mask), kind=kind, level=level, cap=cap, floor=floor)
        assert_close(weight, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0.0)


def test_weights_by_hand() -> None:
    """Ratios 3, 1/2 and 1.2 with cap 2; their product is 1.8. The last token is not in the mask."""
    old = torch.zeros(1, 4, dtype=torch.float64)
    behavior = -torch.tensor([[3.0, 0.5, 1.2, math.nan]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True, True, False]])
    for kind, level, floor, expected in (
        ("tis", "token", 0.0, [2.0, 0.5, 1.2, 0.0]),
        ("tis", "token", 0.8, [2.0, 0.8, 1.2, 0.0]),
        ("mis", "token", 0.0, [0.0, 0.5, 1.2, 0.0]),
        ("mis", "token", 0.8, [0.0, 0.0, 1.2, 0.0]),
        ("tis", "sequence", 0.0, [1.8, 1.8, 1.8, 0.0]),
        ("mis", "sequence", 1.9, [0.0, 0.0, 0.0, 0.0]),
        ("none", "token", 0.0, [1.0, 1.0, 1.0, 0.0]),
    ):
        weight = correction_weight(old, behavior, mask, kind=kind, level=level, cap=2.0, floor=floor)
        assert weight[0].tolist() == pytest.approx(expected, rel=1e-12)


def test_weights_carry_no_gradient() -> None:
    old, behavior = (torch.randn(2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    for level in ("token", "sequence"):
        assert not correction_weight(old, behavior, torch.ones(2, 3, dtype=torch.bool), kind="tis", level=level).requires_grad


def naive_mismatch(old, behavior, weight, mask, level: str) -> list[float]:
    cells = [(i, t) for i in range(len(old)) for t in range(WIDTH) if mask[i][t]]
    ratio = naive_ratio(old, behavior, mask, level)
    count, mass, squares, divergence = len(cells), 0.0, 0.0, 0.0
    for i, t in cells:
        gap = max(-20.0, min(20.0, old[i][t] - behavior[i][t]))
        divergence += math.exp(gap) - gap - 1
        mass += weight[i][t]
        squares += weight[i][t] ** 2
    return [
        sum(ratio[i][t] for i, t in cells) / count,
        max(ratio[i][t] for i, t in cells),
        divergence / count,
        mass / count,
        sum(abs(weight[i][t] - ratio[i][t]) > 1e-9 for i, t in cells) / count,
        mass**2 / (count * squares) if squares else 0.0,
    ]


@pytest.mark.parametrize("gap", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(("kind", "level"), product(["tis", "mis"], ["token", "sequence"]))
def test_mismatch(kind: str, level: str, gap: float) -> None:
    for seed in range(4):
        old, behavior, mask = random_batch(seed, gap)
        ratio = naive_ratio(old, behavior, mask, level)
        weight = [[naive_weight(ratio[i][t], kind, 1.5, 0.5) * mask[i][t] for t in range(WIDTH)] for i in range(len(old))]
        found = correction_weight(*tensors(old, behavior), torch.tensor(mask), kind=kind, level=level, cap=1.5, floor=0.5)
        statistics = mismatch(*tensors(old, behavior), found, torch.tensor(mask), level=level)
        assert list(statistics) == pytest.approx(naive_mismatch(old, behavior, weight, mask, level), rel=1e-10)


def test_mismatch_by_hand() -> None:
    """Ratios 4 and 1 truncated at 3: one weight of two is changed, and (3 + 1)^2 / (2 (9 + 1)) tokens of two count."""
    old, behavior = torch.zeros(1, 2, dtype=torch.float64), -torch.tensor([[4.0, 1.0]], dtype=torch.float64).log()
    mask = torch.ones(1, 2, dtype=torch.bool)
    weight = correction_weight(old, behavior, mask, kind="tis", cap=3.0)
    assert list(mismatch(old, behavior, weight, mask)) == pytest.approx([2.5, 4.0, (3 - math.log(4)) / 2, 2.0, 0.5, 0.8])


def test_mismatch_of_nothing_is_agreement_and_of_dropped_tokens_is_no_sample() -> None:
    old, behavior = torch.zeros(1, 2, dtype=torch.float64), torch.full((1, 2), -5.0, dtype=torch.float64)
    nothing = torch.zeros(1, 2, dtype=torch.bool)
    assert list(mismatch(old, behavior, torch.zeros_like(old), nothing)) == [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    dropped = correction_weight(old, behavior, ~nothing, kind="mis")
    statistics = mismatch(old, behavior, dropped, ~nothing)
    assert (statistics.weight_mean, statistics.changed_share, statistics.effective_share) == (0.0, 1.0, 0.0)


def test_float32_log_probs_keep_their_precision_class() -> None:
    old, behavior, mask = random_batch(0, 0.1)
    single = [tensor.float() for tensor in tensors(old, behavior)]
    ratio = sampler_ratio(single[0], single[1].double(), torch.tensor(mask), level="sequence")
    assert ratio.dtype == torch.float32
    assert_close(ratio.double(), torch.tensor(naive_ratio(old, behavior, mask, "sequence"), dtype=torch.float64), rtol=1e-5, atol=0.0)


def corrected_inputs() -> TokenInputs:
    draw = torch.Generator().manual_seed(0)
    logp, drift, credit, reference, weight = (torch.randn(3, 4, dtype=torch.float64, generator=draw) for _ in range(5))
    return TokenInputs(
        logp=logp.requires_grad_(),
        old_logp=logp.detach() - 0.2 * drift,
        credit=credit,
        mask=torch.ones(3, 4, dtype=torch.bool),
        group=torch.arange(3),
        reference_logp=reference,
        correction=weight.abs(),
    )


@pytest.mark.parametrize("name", ["ppo-clip", "sign-blind-clip", "gspo", "gmpo", "cispo", "sapo", "policy-gradient"])
def test_with_correction_scales_loss_and_slope_of_each_token(name: str) -> None:
    inputs, plain = corrected_inputs(), OBJECTIVES[name]()
    loss, scaled = plain.token_loss(inputs, None), with_correction(plain).token_loss(inputs, None)
    assert_close(scaled, inputs.correction * loss)
    slope, scaled_slope = (torch.autograd.grad(value.sum(), inputs.logp)[0] for value in (loss, scaled))
    assert_close(scaled_slope, inputs.correction * slope)
    assert bool(slope.any())


def test_a_kl_term_is_not_scaled() -> None:
    inputs = corrected_inputs()
    plain = OBJECTIVES["policy-gradient"]()
    built = with_kl(with_correction(plain), beta=0.3, estimator="k3")
    expected = inputs.correction * plain.token_loss(inputs, None) + 0.3 * kl_estimate(inputs.logp, inputs.reference_logp, kind="k3")
    assert_close(built.token_loss(inputs, None), expected)


def test_with_correction_keeps_what_the_objective_declares() -> None:
    class Counter:
        def add(self, inputs: TokenInputs) -> None: ...

        def finish(self) -> float:
            return 5.0

    for silent in (True, False):
        plain = Objective(token_loss=lambda inputs, statistic: statistic * inputs.logp, statistic=Counter, silent_without_credit=silent)
        built = with_correction(plain)
        assert (built.statistic, built.silent_without_credit) == (Counter, silent)
        inputs = corrected_inputs()
        assert_close(built.token_loss(inputs, Counter().finish()), 5.0 * inputs.correction * inputs.logp)


def test_a_missing_correction_is_named() -> None:
    with pytest.raises(ValueError, match="correction is missing"):
        with_correction(OBJECTIVES["ppo-clip"]()).token_loss(corrected_inputs()._replace(correction=None), None)

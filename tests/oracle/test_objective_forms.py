"""Objectives beyond the PPO clip against twins in plain floats: the loss of every token, and the slope of any weighted sum of losses."""

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tokencredit.objective import OBJECTIVES, Objective, TokenInputs
from tokencredit.objective.clip import cispo_surrogate, policy_gradient_surrogate, sapo_surrogate, sign_blind_surrogate
from tokencredit.objective.sequence import clipped_log_ratio, gmpo_surrogate, gspo_surrogate, response_mean

DRIFTS = (0.0, 2e-4, 0.05, 0.6, 12.0, 60.0)
"""Width of the log-ratios: on policy, at the edge of each method's band, and beyond the clamp at 20."""


class Row(NamedTuple):
    """One response; `weight` is what each token's loss counts in the sum that is differentiated, 0 outside the mask."""

    logp: list[float]
    old_logp: list[float]
    credit: list[float]
    mask: list[bool]
    weight: list[float]


class Answer(NamedTuple):
    loss: list[float]
    slope: list[float]


Twin = Callable[..., Answer]


def bounded(value: float, low: float, high: float) -> float:
    return low if value < low else high if value > high else value


def ratio_and_slope(log_ratio: float) -> tuple[float, float]:
    ratio = math.exp(bounded(log_ratio, -20.0, 20.0))
    return ratio, ratio if -20.0 <= log_ratio <= 20.0 else 0.0


def each_token(surrogate: Callable[..., tuple[float, float]]) -> Twin:
    """A twin of an objective that looks at one token at a time: `surrogate(logp, old_logp, credit, **knobs) -> value, slope`."""

    def twin(row: Row, **knobs: Any) -> Answer:
        parts = [surrogate(row.logp[t], row.old_logp[t], row.credit[t], **knobs) for t in range(len(row.logp))]
        return Answer([-value for value, _ in parts], [-row.weight[t] * slope for t, (_, slope) in enumerate(parts)])

    return twin


def naive_sign_blind(logp: float, old_logp: float, credit: float, *, clipping: str, clip_low: float, clip_high: float):
    ratio, slope = ratio_and_slope(logp - old_logp)
    if clipping == "sign-blind" and ratio > 1 + clip_high:
        ratio, slope = 1 + clip_high, 0.0
    if clipping == "sign-blind" and ratio < 1 - clip_low:
        ratio, slope = 1 - clip_low, 0.0
    return ratio * credit, slope * credit


def naive_cispo(logp: float, old_logp: float, credit: float, *, clip_low: float, clip_high: float):
    weight = bounded(ratio_and_slope(logp - old_logp)[0], 1 - clip_low, 1 + clip_high)
    return weight * credit * logp, weight * credit


def naive_sapo(logp: float, old_logp: float, credit: float, *, tau_positive: float, tau_negative: float):
    tau = tau_positive if credit > 0 else tau_negative
    ratio, slope = ratio_and_slope(logp - old_logp)
    # exp(-x) overflows a float at x < -709; the ratio is at most e^20, so only the far side needs care.
    gate = 1 / (1 + math.exp(-min(tau * (ratio - 1), 700.0)))
    return 4 / tau * gate * credit, 4 * gate * (1 - gate) * slope * credit


def naive_policy_gradient(logp: float, old_logp: float, credit: float):
    return credit * logp, credit


def naive_gspo(row: Row, *, clip_low: float, clip_high: float, form: str) -> Answer:
    kept = [t for t in range(len(row.logp)) if row.mask[t]]
    mean = sum(row.logp[t] - row.old_logp[t] for t in kept) / len(kept) if kept else 0.0
    ratio, ratio_slope = ratio_and_slope(mean)
    loss, open_credit = [], []
    for credit in row.credit:
        shut = (credit > 0 and ratio > 1 + clip_high) or (credit < 0 and ratio < 1 - clip_low)
        loss.append(-(bounded(ratio, 1 - clip_low, 1 + clip_high) if shut else ratio) * credit)
        open_credit.append(0.0 if shut else credit)
    if form == "token":
        return Answer(loss, [-row.weight[t] * ratio_slope * open_credit[t] for t in range(len(row.logp))])
    together = -sum(row.weight[t] * open_credit[t] for t in kept) * ratio_slope
    return Answer(loss, [together / len(kept) if row.mask[t] else 0.0 for t in range(len(row.logp))])


def naive_gmpo(row: Row, *, clip_low: float, clip_high: float, form: str) -> Answer:
    clipped, moves = [], []
    for logp, old_logp, credit in zip(row.logp, row.old_logp, row.credit, strict=True):
        log_ratio, free = bounded(logp - old_logp, -20.0, 20.0), -20.0 <= logp - old_logp <= 20.0
        if credit == 0:
            log_ratio, free = 0.0, False
        elif credit > 0 and log_ratio > clip_high:
            log_ratio, free = clip_high, False
        elif credit < 0 and log_ratio < -clip_low:
            log_ratio, free = -clip_low, False
        clipped.append(log_ratio)
        moves.append(1.0 if free else 0.0)
    kept = [t for t in range(len(row.logp)) if row.mask[t]]
    ratio = math.exp(sum(clipped[t] for t in kept) / len(kept)) if kept else 1.0
    loss = [-credit * ratio for credit in row.credit]
    if form == "token":
        return Answer(loss, [-row.weight[t] * row.credit[t] * ratio * moves[t] for t in range(len(row.logp))])
    together = sum(row.weight[t] * loss[t] for t in kept)
    return Answer(loss, [together * moves[t] / len(kept) if row.mask[t] else 0.0 for t in range(len(row.logp))])


class Form(NamedTuple):
    name: str
    knobs: dict[str, Any]
    twin: Twin


FORMS = [
    Form("sign-blind-clip", {"clipping": "sign-blind", "clip_low": 0.2, "clip_high": 0.28}, each_token(naive_sign_blind)),
    Form("sign-blind-clip", {"clipping": "none", "clip_low": 0.2, "clip_high": 0.28}, each_token(naive_sign_blind)),
    Form("cispo", {"clip_low": 1.0, "clip_high": 4.0}, each_token(naive_cispo)),
    Form("cispo", {"clip_low": 0.1, "clip_high": 0.3}, each_token(naive_cispo)),
    Form("sapo", {"tau_positive": 1.0, "tau_negative": 1.05}, each_token(naive_sapo)),
    Form("sapo", {"tau_positive": 5.0, "tau_negative": 0.3}, each_token(naive_sapo)),
    Form("policy-gradient", {}, each_token(naive_policy_gradient)),
    *[
        Form(name, {"clip_low": low, "clip_high": high, "form": form}, twin)
        for name, twin, widths in (
            ("gspo", naive_gspo, [(3e-4, 4e-4), (0.02, 0.05)]),
            ("gmpo", naive_gmpo, [(0.4, 0.4), (0.02, 0.3)]),
        )
        for low, high in widths
        for form in ("token", "sequence")
    ],
]


def random_rows(seed: int, drift: float) -> list[Row]:
    """Uneven lengths, holes, a response without tokens, one without credit, credit of one sign and of both, zeros among them."""
    draw = random.Random(f"{seed} {drift}")
    rows = []
    for kind, length in (("both", 7), ("positive", 4), ("negative", 6), ("none", 3), ("empty", 5), ("both", 1), ("both", 2)):
        old_logp = [-draw.uniform(0.01, 4) for _ in range(7)]
        logp = [old + draw.uniform(-drift, drift) for old in old_logp]
        mask = [t < length and (t == 0 or draw.random() < 0.8) and kind != "empty" for t in range(7)]
        size = [draw.choice([0.0, 0.5, 1.0, draw.uniform(0, 3)]) for _ in range(7)]
        sign = [{"positive": 1, "negative": -1, "none": 0}.get(kind) for _ in range(7)]
        credit = [draw.choice([-1, 1]) * a if s is None else s * a for a, s in zip(size, sign, strict=True)]
        weight = [draw.uniform(0.1, 1) * m for m in mask]
        rows.append(Row(logp, old_logp, credit, mask, weight))
    return rows


def as_inputs(rows: list[Row]) -> TokenInputs:
    columns = {name: torch.tensor([getattr(row, name) for row in rows], dtype=torch.float64) for name in ("logp", "old_logp", "credit")}
    return TokenInputs(**columns, mask=torch.tensor([row.mask for row in rows]), group=torch.arange(len(rows)))


def loss_and_slope(objective: Objective, rows: list[Row]) -> tuple[Tensor, Tensor]:
    inputs = as_inputs(rows)
    logp = inputs.logp.requires_grad_()
    weight = torch.tensor([row.weight for row in rows], dtype=torch.float64)
    loss = objective.token_loss(inputs._replace(logp=logp), None)
    return loss.detach(), torch.autograd.grad((weight * loss).sum(), logp)[0]


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize(("name", "knobs", "twin"), FORMS, ids=lambda part: part if isinstance(part, str) else "")
def test_objective(name: str, knobs: dict[str, Any], twin: Twin, drift: float) -> None:
    for seed in range(4):
        rows = random_rows(seed, drift)
        loss, slope = loss_and_slope(OBJECTIVES[name](**knobs), rows)
        for i, row in enumerate(rows):
            expected = twin(row, **knobs)
            inside = [t for t in range(7) if row.mask[t]]
            assert [float(loss[i, t]) for t in inside] == pytest.approx([expected.loss[t] for t in inside], rel=1e-10, abs=1e-13)
            assert slope[i].tolist() == pytest.approx(expected.slope, rel=1e-10, abs=1e-13)


def test_the_batches_reach_every_branch() -> None:
    """Clipped on either side, within the band, beyond the clamp: otherwise the comparison above proves less than it says."""
    seen = {"gspo": set(), "gmpo": set(), "beyond": set()}
    for drift in DRIFTS:
        for row in (row for seed in range(4) for row in random_rows(seed, drift)):
            kept = [t for t in range(7) if row.mask[t] and row.credit[t] != 0]
            mean = sum(row.logp[t] - row.old_logp[t] for t in range(7) if row.mask[t]) / max(1, sum(row.mask))
            side = "above" if math.exp(mean) > 1 + 4e-4 else "below" if math.exp(mean) < 1 - 3e-4 else "within"
            seen["gspo"] |= {(side, row.credit[t] > 0) for t in kept}
            for t in kept:
                gap = row.logp[t] - row.old_logp[t]
                seen["gmpo"].add(("above" if gap > 0.4 else "below" if gap < -0.4 else "within", row.credit[t] > 0))
                seen["beyond"].add((gap > 20) - (gap < -20))
    every_side = {(side, positive) for side in ("above", "below", "within") for positive in (True, False)}
    assert seen == {"gspo": every_side, "gmpo": every_side, "beyond": {-1, 0, 1}}


def by_hand(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


ALL = torch.tensor([[True, True]])


def slope_of(surrogate: Tensor, logp: Tensor) -> list[float]:
    return torch.autograd.grad(surrogate.sum(), logp)[0].flatten().tolist()


def test_gspo_by_hand() -> None:
    """Token ratios 4 and 1: the response's ratio is 2. Band 0.8 to 1.5 shuts positive credit and leaves negative credit open."""
    logp = by_hand(4.0, 1.0).log().requires_grad_()
    for form, slope in (("token", [0.0, -2.0]), ("sequence", [-1.0, -1.0])):
        surrogate = gspo_surrogate(logp, by_hand(0.0, 0.0), by_hand(3.0, -1.0), ALL, clip_low=0.2, clip_high=0.5, form=form)
        assert surrogate.flatten().tolist() == pytest.approx([4.5, -2.0])
        assert slope_of(surrogate, logp) == pytest.approx(slope)


def test_gspo_without_tokens_has_ratio_one() -> None:
    value = by_hand(7.0, 9.0)
    assert response_mean(value, ~ALL).tolist() == [[0.0]]
    surrogate = gspo_surrogate(value, by_hand(0.0, 0.0), by_hand(3.0, -1.0), ~ALL, clip_low=0.2, clip_high=0.5, form="sequence")
    assert surrogate.tolist() == [[3.0, -1.0]]


def test_gmpo_by_hand() -> None:
    """Token ratios 4 and 1/4. Credit (1, 2): only the first is clipped, to 2, so r = sqrt(2 / 4). Credit (-1, -1): the second, to 1/2."""
    logp = by_hand(4.0, 0.25).log().requires_grad_()
    width = {"clip_low": math.log(2), "clip_high": math.log(2)}
    for credit, ratio, open_ in ((by_hand(1.0, 2.0), math.sqrt(0.5), [0.0, 1.0]), (by_hand(-1.0, -1.0), math.sqrt(2.0), [1.0, 0.0])):
        token = gmpo_surrogate(logp, by_hand(0.0, 0.0), credit, ALL, **width, form="token")
        whole = gmpo_surrogate(logp, by_hand(0.0, 0.0), credit, ALL, **width, form="sequence")
        assert token.tolist() == whole.tolist() == [pytest.approx([ratio * a for a in credit[0].tolist()])]
        assert slope_of(token, logp) == pytest.approx([ratio * a * o for a, o in zip(credit[0].tolist(), open_, strict=True)])
        assert slope_of(whole, logp) == pytest.approx([ratio * float(credit.sum()) / 2 * o for o in open_])


def test_gmpo_gives_a_token_without_credit_no_say() -> None:
    clipped = clipped_log_ratio(by_hand(3.0, 3.0), by_hand(0.0, 0.0), by_hand(0.0, -1.0), clip_low=0.4, clip_high=0.4)
    assert clipped.tolist() == [[0.0, 3.0]]


def test_token_forms_by_hand() -> None:
    """Ratio 2 and credit 3: a clip at 1.5 shuts the sign-blind surrogate and only weighs CISPO's; SAPO's gate at 1 is sigmoid(tau)."""
    old_logp, credit = by_hand(-1.0), by_hand(3.0)
    logp = (old_logp + math.log(2)).requires_grad_()
    value = math.log(2) - 1
    gate = 1 / (1 + math.exp(-1))
    for surrogate, expected, slope in (
        (sign_blind_surrogate(logp, old_logp, credit, clip_low=0.2, clip_high=0.5), 4.5, 0.0),
        (sign_blind_surrogate(logp, old_logp, -credit, clip_low=0.2, clip_high=0.5), -4.5, 0.0),
        (sign_blind_surrogate(logp, old_logp, credit, clipping="none", clip_low=0.2, clip_high=0.5), 6.0, 6.0),
        (cispo_surrogate(logp, old_logp, credit, clip_low=0.2, clip_high=0.5), 4.5 * value, 4.5),
        (policy_gradient_surrogate(logp, credit), 3.0 * value, 3.0),
        (sapo_surrogate(logp, old_logp, credit, tau_positive=1.0, tau_negative=2.0), 12 * gate, 24 * gate * (1 - gate)),
    ):
        assert surrogate.tolist() == [[pytest.approx(expected)]]
        assert slope_of(surrogate, logp) == pytest.approx([slope])


@pytest.mark.parametrize(("name", "knobs", "twin"), FORMS, ids=lambda part: part if isinstance(part, str) else "")
def test_gradient_flows_through_the_log_probs_alone(name: str, knobs: dict[str, Any], twin: Twin) -> None:
    inputs = as_inputs(random_rows(0, 0.05))
    leaves = [tensor.clone().requires_grad_() for tensor in (inputs.logp, inputs.old_logp, inputs.credit)]
    loss = OBJECTIVES[name](**knobs).token_loss(inputs._replace(logp=leaves[0], old_logp=leaves[1], credit=leaves[2]), None)
    by_logp, by_old, by_credit = torch.autograd.grad(loss[inputs.mask].sum(), leaves, allow_unused=True)
    assert bool(by_logp.any())
    assert by_old is None
    assert by_credit is None


@pytest.mark.parametrize(("name", "knobs", "twin"), FORMS, ids=lambda part: part if isinstance(part, str) else "")
def test_float32_neither_overflows_nor_drifts(name: str, knobs: dict[str, Any], twin: Twin) -> None:
    for drift in (0.05, 60.0):
        rows = random_rows(1, drift)
        inputs = as_inputs(rows)
        single = TokenInputs(*(part.float() if isinstance(part, Tensor) and part.is_floating_point() else part for part in inputs))
        loss = OBJECTIVES[name](**knobs).token_loss(single, None)
        assert loss.dtype == torch.float32
        expected = torch.tensor([twin(row, **knobs).loss for row in rows], dtype=torch.float64)
        torch.testing.assert_close(loss.double()[inputs.mask], expected[inputs.mask], rtol=2e-4, atol=1e-5)

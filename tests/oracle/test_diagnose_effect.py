"""Trust in predictions against plain statistics in loops, and on a linear-softmax policy where first order is known."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oracle.update_cases import Batch, make_table, random_evidence, random_table
from tokencredit.diagnose.effect import effect
from tokencredit.diagnose.table import TokenTable

Same = {"nan_ok": True, "rel": 1e-9, "abs": 1e-12}
MEASURES = ("tokens", "correlation", "slope", "sign", "error")


def naive(predicted: list[float], measured: list[float]) -> dict[str, float]:
    known = [(p, m) for p, m in zip(predicted, measured, strict=True) if not math.isnan(p) and not math.isnan(m)]
    ps, ms = [p for p, _ in known], [m for _, m in known]
    varies = len(known) > 1 and len(set(ps)) > 1 and len(set(ms)) > 1
    judged = [(p > 0) - (p < 0) == (m > 0) - (m < 0) for p, m in known if abs(m) > 1e-4]
    squares = sum(p * p for p in ps)
    size = statistics.median(abs(m) for m in ms) if ms else 0.0
    return {
        "tokens": len(known),
        "correlation": statistics.correlation(ps, ms) if varies else math.nan,
        "slope": sum(p * m for p, m in known) / squares if squares else math.nan,
        "sign": sum(judged) / len(judged) if judged else math.nan,
        "error": statistics.median(abs(m - p) for p, m in known) / size if size else math.nan,
    }


@pytest.mark.parametrize("seed", range(6))
def test_every_number_and_table_equals_plain_statistics(seed: int) -> None:
    table = random_table(seed)
    noise = [random_evidence(table, 10 * seed + k) for k in range(3)]
    change = {"first": random_evidence(table, 300 + seed, unknown=0.1), "step": random_evidence(table, 400 + seed)}
    predicted = {name: 0.7 * value + share * other for (name, value), share, other in zip(change.items(), (0.3, 2.0), noise, strict=False)}
    finding = effect(
        table,
        predicted_first=predicted["first"],
        change_first=change["first"],
        predicted_step=predicted["step"],
        change_step=change["step"],
        raw=noise[2],
        method="jvp",
    )
    for horizon in ("first", "step"):
        expected = naive(predicted[horizon].tolist(), change[horizon].tolist())
        assert {key: finding.numbers[f"{horizon}/{key}"] for key in MEASURES} == pytest.approx(expected, **Same)
        for part in set(table.token_class):
            places = [at for at, name in enumerate(table.token_class) if name == part]
            expected = naive(*([column[horizon].tolist()[at] for at in places] for column in (predicted, change)))
            (row,) = [r for r in finding.tables["by_class"] if r["horizon"] == horizon and r["token_class"] == part]
            assert {key: row[key] for key in MEASURES} == pytest.approx(expected, **Same)
        low = [at for at, p in enumerate(table.probability.tolist()) if p < 0.5]
        expected = naive(*([column[horizon].tolist()[at] for at in low] for column in (predicted, change)))
        (row,) = [r for r in finding.tables["by_confidence"] if r["horizon"] == horizon and r["confidence"] == "p < 0.5"]
        assert {key: row[key] for key in MEASURES} == pytest.approx(expected, **Same)
    raw = naive(noise[2].tolist(), change["step"].tolist())["correlation"]
    assert finding.numbers["raw/correlation"] == pytest.approx(raw, **Same)


def whole_step(table: TokenTable, predicted: Tensor, change: Tensor, raw: Tensor | None = None):
    return effect(table, predicted_first=None, change_first=None, predicted_step=predicted, change_step=change, raw=raw, method="by hand")


def softmax_policy() -> tuple[TokenTable, Batch]:
    contexts, tokens, weight = [0, 0, 0, 1, 1, 2], [0, 1, 0, 2, 3, 1], [1.0, 1.0, -2.0, 0.5, -0.5, 1.0]
    table = make_table(
        row=list(range(6)), group=contexts, token=tokens, probability=[0.25] * 6, advantage=weight, score=[float(w > 0) for w in weight]
    )
    return table, Batch(context=contexts, token=tokens, weight=weight, vocabulary=4)


def test_first_order_holds_for_a_small_step_and_fails_for_a_large_one() -> None:
    table, batch = softmax_policy()
    direction = torch.tensor(batch.effect(range(6)), dtype=torch.float64)
    small = whole_step(table, 1e-3 * direction, batch.measured(1e-3))
    assert small.numbers["step/correlation"] > 0.999
    assert small.numbers["step/slope"] == pytest.approx(1, abs=2e-3)
    assert small.numbers["step/sign"] == 1.0
    assert small.numbers["step/error"] < 2e-3
    large = whole_step(table, 20 * direction, batch.measured(20))
    assert large.numbers["step/error"] > 0.1
    assert large.numbers["step/correlation"] < small.numbers["step/correlation"]


def test_a_prediction_of_half_the_size_correlates_fully_and_the_slope_tells() -> None:
    table, batch = softmax_policy()
    measured = batch.measured(1e-2)
    numbers = whole_step(table, measured / 2, measured, raw=-measured).numbers
    assert numbers["step/correlation"] == pytest.approx(1)
    assert numbers["step/slope"] == pytest.approx(2)
    assert numbers["step/error"] == pytest.approx(0.5)
    assert numbers["raw/correlation"] == pytest.approx(-1)


@pytest.mark.parametrize(
    ("correlation", "advice"),
    [(0.95, "classes and averages"), (0.8, "classes and averages"), (0.79, "do not trust")],
)
def test_the_note_says_how_far_to_trust(correlation: float, advice: str) -> None:
    """Two orthogonal patterns of equal size, mixed to give a correlation known to 1e-6; borders belong to the better side."""
    table, _ = softmax_policy()
    table = table.select(torch.tensor([0, 1, 2, 3]))
    one, two = torch.tensor([1.0, 1.0, -1.0, -1.0]).double(), torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    exact = correlation + 1e-6
    finding = whole_step(table, exact * one + math.sqrt(1 - exact**2) * two, one)
    assert finding.numbers["step/correlation"] == pytest.approx(exact, abs=1e-12)
    assert advice in finding.note
    assert "by hand" in finding.note


@pytest.mark.parametrize(
    ("slope", "off", "advice"),
    [
        (1.0, 0.0, "token by token"),
        (1.24, 0.0, "token by token"),
        (1.26, 0.0, "classes and averages"),
        (0.79, 0.0, "classes and averages"),
        (2.1, 0.0, "do not trust"),
        (0.49, 0.0, "do not trust"),
        (1.0, 0.24, "token by token"),
        (1.0, 0.26, "classes and averages"),
    ],
)
def test_slope_and_error_count_beside_the_correlation(slope: float, off: float, advice: str) -> None:
    """Predicted = slope x measured, then every value off by a share of the median; a large value keeps the correlation at 1."""
    table, _ = softmax_policy()
    table = table.select(torch.tensor([0, 1, 2, 3, 4]))
    measured = torch.tensor([1.0, -1.0, 1.0, -1.0, 100.0]).double()
    predicted = slope * measured + off * torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0]).double()
    finding = whole_step(table, predicted, measured)
    assert finding.numbers["step/correlation"] > 0.99
    assert advice in finding.note


def test_a_class_that_is_badly_predicted_is_named() -> None:
    """Forty tokens agree, twenty of another class do not; the overall correlation hides it."""
    table, _ = softmax_policy()
    table = table.select(torch.zeros(60, dtype=torch.long))
    table = replace(table, token_class=("copy",) * 40 + ("end",) * 20)
    predicted = torch.cat([torch.linspace(-10, 10, 40), 0.01 * torch.cos(torch.arange(20.0))]).double()
    measured = torch.cat([predicted[:40], 0.01 * torch.sin(torch.arange(20.0)).double()])
    note = whole_step(table, predicted, measured).note
    assert "token by token" in note
    assert "Not so for class end (" in note
    assert "Not so" not in whole_step(table, predicted, predicted).note


def test_what_cannot_be_told_is_nan_and_said_so() -> None:
    table, _ = softmax_policy()
    still = whole_step(table, torch.zeros(6), torch.zeros(6))
    assert all(math.isnan(still.numbers[f"step/{name}"]) for name in MEASURES[1:])
    assert "the reliability of predictions is unknown" in still.note
    assert "no prediction to judge" in still.note
    tiny = whole_step(table, 1e-6 * torch.arange(6.0), 1e-6 * torch.arange(6.0))
    assert math.isnan(tiny.numbers["step/sign"])
    assert "no token moved enough" in tiny.note
    unknown = whole_step(table, torch.full((6,), math.nan), torch.ones(6))
    assert unknown.numbers["step/tokens"] == 0
    assert unknown.tables["by_class"] == ()

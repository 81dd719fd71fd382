"""Entropy by class and its trend, against loops, a closed-form line, and answers worked out on paper."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from tokencredit.diagnose.entropy import entropy, entropy_trend
from tokencredit.diagnose.table import TokenTable

NAN = math.nan


def make_table(entropies: Tensor, classes: tuple[str, ...]) -> TokenTable:
    count = len(entropies)
    zeros, place = torch.zeros(count, dtype=torch.float64), torch.arange(count)
    columns: dict[str, Any] = dict.fromkeys(("logp", "credit", "advantage", "score"), zeros)
    columns |= dict.fromkeys(("row", "group", "position", "token", "optimizer_step"), place)
    return TokenTable(**columns, text=("x",) * count, token_class=classes, entropy=entropies)


def naive_slope(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Slope of the least-squares line and its height at the last step, in fractions: over pairs, not over deviations."""
    exact = [(Fraction(step), Fraction(value)) for step, value in points]
    pairs = [(a, b) for i, a in enumerate(exact) for b in exact[:i]]
    slope = sum((a[0] - b[0]) * (a[1] - b[1]) for a, b in pairs) / sum((a[0] - b[0]) ** 2 for a, b in pairs)
    middle = [sum(point[axis] for point in exact) / len(exact) for axis in (0, 1)]
    return float(slope), float(middle[1] + slope * (exact[-1][0] - middle[0]))


@pytest.mark.parametrize("seed", range(4))
def test_the_line_is_least_squares_over_the_last_points(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (9,), generator=draw).cumsum(0).tolist()
    values = (2 - 0.1 * torch.arange(9) + 0.1 * torch.randn(9, generator=draw)).tolist()
    history = list(zip(steps, values, strict=True))
    slope, now = naive_slope(history[-5:])
    found = entropy_trend(history, window=5, floor_share=0.3)
    assert found.slope == pytest.approx(slope)
    assert found.floor == pytest.approx(0.3 * values[0])
    assert found.current == pytest.approx(values[-1])
    assert slope < 0
    assert found.steps_to_floor == pytest.approx((now - found.floor) / -slope)


FALLING = [(step, 1.0 - 0.01 * step) for step in range(61)]
"""Floor 0.25, at step 60 0.40: the floor is 15 steps away."""
EXACT = [(step, 2 - step / 64) for step in range(65)]
"""Floor 1/2, at step 64 1: 32 steps, with no rounding anywhere."""


@pytest.mark.parametrize(
    ("history", "knobs", "status", "slope", "steps"),
    [
        (FALLING, {}, "warning", -0.01, 15.0),
        (EXACT, {"window": 8, "horizon": 32}, "warning", -1 / 64, 32.0),
        (EXACT, {"window": 8, "horizon": 31}, "ok", -1 / 64, 32.0),
        (FALLING, {"horizon": 14}, "ok", -0.01, 15.0),
        (FALLING, {"floor_share": 0.41}, "collapsed", -0.01, 0.0),
        (FALLING, {"floor_share": 0.1}, "ok", -0.01, 30.0),
        ([(0, 1.0), (1, 0.5), (2, 0.2), (3, 0.21)], {"window": 2}, "collapsed", 0.01, NAN),
        ([(0, 1.0), (4, 0.7), (5, 0.5), (6, 0.4), (7, 0.26)], {"window": 3}, "warning", -0.12, 5 / 36),
        ([(0, 1.0), (5, 0.5), (6, 0.4), (7, 0.26)], {"window": 3}, "unknown", -0.12, 5 / 36),
        ([(step, 1.0) for step in range(5)], {}, "ok", 0.0, NAN),
        ([(3, 0.5)], {}, "unknown", NAN, NAN),
        ([(3, 0.5), (4, NAN), (5, 0.5), (6, 0.5), (7, 0.5)], {}, "unknown", 0.0, NAN),
        ([(3, NAN)], {}, "unknown", NAN, NAN),
        ([], {}, "unknown", NAN, NAN),
    ],
)
def test_when_the_warning_comes(history, knobs, status, slope, steps) -> None:
    found = entropy_trend(history, **knobs)
    assert found.status == status
    assert found.slope == pytest.approx(slope, nan_ok=True)
    assert found.steps_to_floor == pytest.approx(steps, nan_ok=True, rel=1e-4, abs=1e-9)
    finding = entropy(make_table(torch.ones(1), ("copy",)), None, history, **knobs)
    assert finding.tables["trend"][0]["status"] == status
    assert finding.numbers["level"] == pytest.approx({"ok": 0, "warning": 1, "collapsed": 2, "unknown": NAN}[status], nan_ok=True)
    opening = {"collapsed": "Collapsed: ", "warning": "Warning: ", "unknown": "Fewer than 5 training steps are known"}
    assert opening.get(status, "The run's entropy" if math.isnan(steps) else "No warning: ") in finding.note
    assert ("the threshold is ours" in finding.note) == (status != "unknown")


def test_means_by_class_over_tokens_measured_twice() -> None:
    before = torch.tensor([0.5, 1.0, 0.2, 0.4, 0.8], dtype=torch.float64)
    after = torch.tensor([0.4, 0.6, 0.5, NAN, NAN])
    classes = ("copy", "result", "copy", "copy", "end")
    finding = entropy(make_table(before, classes), after, [])
    measured = {name: [i for i in range(5) if classes[i] == name and not math.isnan(float(after[i]))] for name in dict.fromkeys(classes)}
    rows = {row["token_class"]: row for row in finding.tables["by_class"]}
    assert list(rows) == ["copy", "result", "end"]
    for name, places in measured.items():
        assert rows[name]["tokens"] == len(places)
        for column, values in (("before", before), ("after", after), ("change", after.double() - before)):
            expected = sum(float(values[i]) for i in places) / len(places) if places else NAN
            assert rows[name][column] == pytest.approx(expected, nan_ok=True)
    assert finding.numbers["before"] == pytest.approx((0.5 + 1.0 + 0.2) / 3)
    assert finding.numbers["after"] == pytest.approx(0.5)
    assert finding.numbers["change"] == pytest.approx(0.5 - 1.7 / 3)
    assert finding.numbers["tokens"] == 3
    assert "from 0.567 to 0.5 nats" in finding.note


def test_without_a_second_measurement_all_tokens_count_before() -> None:
    finding = entropy(make_table(torch.tensor([0.5, 1.5]), ("copy", "end")), None, [(0, 1.0)])
    assert finding.numbers["before"] == 1.0
    assert math.isnan(finding.numbers["after"])
    assert math.isnan(finding.numbers["change"])
    assert [row["before"] for row in finding.tables["by_class"]] == [0.5, 1.5]
    assert "not measured" in finding.note


def test_evidence_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy_after is \\(3,\\) but the table holds 2 tokens"):
        entropy(make_table(torch.ones(2), ("copy", "end")), torch.ones(3), [])

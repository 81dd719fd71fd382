"""Medians and factors as tables say them, also if runs never reach the target."""

import math
from typing import Any

import pytest

from tokencredit.lab.pages.effects import effect, to_threshold

POINTS = {"ratio": False, "percent": True}
FACTOR = {"ratio": True, "percent": False}
NOBODY = {"recipe": 0, "reference": 0, "both": 0}


@pytest.mark.parametrize(
    ("median", "reached", "expected"),
    [(8_000.0, 8, "8,000"), (11_052.0, 7, "11,052 (7/8)"), (None, 4, "no median (4/8)"), (None, 0, "never (0/8)")],
)
def test_rollouts_to_a_threshold(median: float | None, reached: int, expected: str) -> None:
    assert to_threshold({"median": median, "reached": reached}, 8) == expected


@pytest.mark.parametrize(
    ("measure", "low", "high", "interval", "never", "expected"),
    [
        (POINTS, 0.013, 0.013, (0.004, 0.022), NOBODY, "+1.3 [+0.4, +2.2]"),
        (FACTOR, math.log(0.84), math.log(0.84), (math.log(0.78), math.log(0.91)), NOBODY, "×0.84 [0.78, 0.91]"),
        (FACTOR, math.log(1.5), None, (math.log(1.2), None), NOBODY | {"recipe": 2}, "≥ ×1.50 [1.20, ∞] (2 recipe never)"),
        (FACTOR, None, math.log(0.7), (None, 0.0), NOBODY | {"reference": 1}, "≤ ×0.70 [0, 1.00] (1 reference never)"),
        (FACTOR, None, None, (None, None), {"recipe": 7, "reference": 0, "both": 1}, "unknown (7 recipe never, 1 neither)"),
    ],
)
def test_a_difference(
    measure: dict[str, bool],
    low: float | None,
    high: float | None,
    interval: tuple[float | None, float | None],
    never: dict[str, int],
    expected: str,
) -> None:
    found: dict[str, Any] = {"pairs": 8, "low": low, "high": high, "interval": interval, "never": never}
    assert effect(measure, found) == expected
    assert effect(measure, found | {"pairs": 0}) == "–"

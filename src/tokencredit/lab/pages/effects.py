"""Formats the numbers of a comparison for the terminal and the page. `measure` is an entry of the JSON's measures."""

import math
from collections.abc import Mapping
from typing import Any

Measure = Mapping[str, Any]


def share(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def mean_and_spread(found: dict[str, float | None], *, percent: bool = False, digits: int = 1) -> str:
    """`81.2 ± 1.4`; without a spread where there is one run."""
    scale = 100 if percent else 1
    if found["mean"] is None:
        return "–"
    middle = f"{scale * found['mean']:,.{digits}f}"
    return middle if found["sd"] is None else f"{middle} ± {scale * found['sd']:,.{digits}f}"


def to_threshold(found: dict[str, Any], runs: int) -> str:
    """The median over runs, and how many reached the threshold; no median if half or fewer did."""
    if found["median"] is None:
        return f"{'no median' if found['reached'] else 'never'} ({found['reached']}/{runs})"
    return f"{found['median']:,.0f}" + ("" if found["reached"] == runs else f" ({found['reached']}/{runs})")


def effect(measure: Measure, found: dict[str, Any]) -> str:
    """`+1.3 [+0.4, +2.2]` in points, `×0.84 [0.78, 0.91]` for rollouts; `≥` or `≤` if some runs never reached the target."""
    if not found["pairs"]:
        return "–"
    low, high, interval = found["low"], found["high"], found["interval"]
    ends = [_end(measure, interval[0], "−∞" if not measure["ratio"] else "0"), _end(measure, interval[1], "∞")]
    between = f"[{ends[0]}, {ends[1]}]"
    sign = "×" if measure["ratio"] else ""
    if low is not None and low == high:
        return f"{sign}{_end(measure, low, '')} {between}"
    if low is None and high is None:
        return f"unknown ({_never_reached(found['never'])})"
    bound = f"≥ {sign}{_end(measure, low, '')}" if high is None else f"≤ {sign}{_end(measure, high, '')}"
    return f"{bound} {between} ({_never_reached(found['never'])})"


def _never_reached(never: dict[str, int]) -> str:
    labels = {"recipe": "recipe never", "reference": "reference never", "both": "neither"}
    return ", ".join(f"{count} {labels[who]}" for who, count in never.items() if count)


def _end(measure: Measure, value: float | None, otherwise: str) -> str:
    if value is None:
        return otherwise
    if measure["ratio"]:
        return f"{math.exp(value):.2f}"
    return f"{100 * value:+.1f}" if measure["percent"] else f"{value:+.3f}"


def t_value(found: dict[str, Any]) -> str:
    return "–" if found["t"] is None else f"{found['t']:+.1f}"


def improvement(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    low, high = found["interval"]
    return f"{found['probability']:.2f} [{low:.2f}, {high:.2f}]"


def seeds(found: dict[str, int | None]) -> str:
    """Seeds for a gain of a tenth / for the measured gain."""
    return " / ".join("–" if found[name] is None else str(found[name]) for name in ("tenth", "seen"))

"""One HTML file from the JSON of `tokencredit compare`: curves, differences with their intervals, tables, settings."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from tokencredit.config.syntax import settings_apart
from tokencredit.errors import ConfigError
from tokencredit.lab.pages import effects, page_environment, read_assets
from tokencredit.report.charts import WITHOUT, can_draw, draw
from tokencredit.report.curves import Curve, Point, Series
from tokencredit.report.format import duration, grouped, hundreds, percent
from tokencredit.report.methods import shown
from tokencredit.report.page import content_policy
from tokencredit.text import brief, sanitize_values
from tokencredit.version import own_version

STYLES = ("page.css", "comparison.css")
SCRIPTS = ("comparison.js",)
WIDTH = 1000
"""Width of a forest plot, in SVG units."""
IN_THE_FOREST = ("area", "final", "to_threshold", "to_final", "pass_at_k", "entropy")


class Mark(NamedTuple):
    recipe: str
    control: bool
    text: str
    low: float
    """Ends of the interval as positions from 0 to WIDTH; an unbounded end is at the edge."""
    high: float
    at: float | None
    """Position of the estimate, or of its finite bound."""
    better: str
    """`up`, `down` or `none`: whether the interval excludes no difference, and on which side."""


class Forest(NamedTuple):
    title: str
    what: str
    less_is_better: bool
    zero: float
    marks: list[Mark]


def write_comparison(document: Mapping[str, Any], out: Path) -> None:
    page = render(document)
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        os.replace(partial, out)
    except OSError as problem:
        raise ConfigError(f"out {out} cannot be written: {problem.strerror or problem}") from None


def render(document: Mapping[str, Any]) -> str:
    """Render the page. Every string of the JSON is sanitized first; the template escapes it."""
    shown_of: Any = sanitize_values(dict(document))
    environment = page_environment()
    environment.filters |= {"hundreds": hundreds, "grouped": grouped, "percent": percent, "duration": duration, "setting": shown}
    environment.filters["settings_apart"] = settings_apart
    script, style = read_assets(SCRIPTS), read_assets(STYLES)
    summary, bases = shown_of["summary"], list(shown_of["design"]["bases"])
    places = [("All bases together" if len(bases) > 1 else "", None), *((base, base) for base in bases if len(bases) > 1)]
    return environment.get_template("comparison.html").render(
        policy=content_policy(script, style),
        style=Markup(style),
        script=Markup(script),
        document=shown_of,
        summary=summary,
        effects=effects,
        curves={base: _figures(summary["curves"].get(base, []), summary["reference"]) for base in bases},
        without_charts="" if can_draw() else WITHOUT,
        places=[(title, _compared(summary, base), forests(summary, base)) for title, base in places],
        version=own_version(),
    )


def _compared(summary: Mapping[str, Any], base: str | None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Comparisons with their numbers, over all bases or for one."""
    found = [(one, one["overall"] if base is None else one["by_base"].get(base)) for one in summary["comparisons"] if one["pairs"]]
    return [(one, measured) for one, measured in found if measured is not None]


def forests(summary: Mapping[str, Any], base: str | None) -> list[Forest]:
    """One forest plot per measure: the difference of each recipe to the reference, on one scale."""
    compared = _compared(summary, base)
    found = []
    for name in IN_THE_FOREST:
        measure = summary["measures"][name]
        rows = [(one, measured[name]) for one, measured in compared if measured[name]["pairs"]]
        if rows:
            found.append(_forest(measure, rows))
    return found


def _forest(measure: Mapping[str, Any], rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Forest:
    ends = [end for _, found in rows for end in (*found["interval"], found["low"], found["high"]) if end is not None]
    reach = 1.08 * max([abs(end) for end in ends] or [1.0], default=1.0) or 1.0

    def place(value: float | None, unbounded: float) -> float:
        return unbounded if value is None else round(WIDTH * (value / reach + 1) / 2, 1)

    marks = []
    for one, found in rows:
        low, high = found["interval"]
        side = "up" if low is not None and low > 0 else "down" if high is not None and high < 0 else "none"
        if measure["ratio"] and side != "none":
            side = "down" if side == "up" else "up"
        bound = found["high"] if found["low"] is None else found["low"]
        text = effects.effect(measure, found) + ("" if found["t"] is None else f", t {effects.t_value(found)}")
        marks.append(
            Mark(
                one["recipe"],
                one["control"],
                text,
                place(low, 0),
                place(high, WIDTH),
                None if bound is None else place(bound, 0),
                side,
            )
        )
    return Forest(measure["title"], measure["what"], measure["ratio"], WIDTH / 2, marks)


def _figures(found: Sequence[Mapping[str, Any]], reference: str) -> list[dict[str, Any]]:
    """One chart per recipe, with the reference in it; the reference alone if there is no other recipe."""
    by_recipe = {one["recipe"]: one for one in found}
    others = [one for one in found if one["recipe"] != reference]
    pairs = [[one, by_recipe[reference]] if reference in by_recipe else [one] for one in others] or [list(found)]
    return [_figure(lines) for lines in pairs if lines]


def _figure(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    series = tuple(Series(one["recipe"], tuple(_points(one))) for one in lines)
    ends = [f"{one['recipe']}: {hundreds(one['mean'][0])} % at first, {hundreds(one['mean'][-1])} % at the end" for one in lines]
    return {
        "title": lines[0]["recipe"],
        "labels": [one["recipe"] for one in lines],
        "sentence": brief(f"Held-out accuracy over rollouts. {'; '.join(ends)}.", 2000),
        "svg": Markup(draw(Curve("Held-out accuracy", "", True, series))) if can_draw() else "",
    }


def _points(one: Mapping[str, Any]) -> list[Point]:
    spread = one["sd"] or [None] * len(one["mean"])
    return [
        Point(round(rollouts), value, None if sd is None else max(0.0, value - sd), None if sd is None else min(1.0, value + sd))
        for rollouts, value, sd in zip(one["rollouts"], one["mean"], spread, strict=True)
        if math.isfinite(value)
    ]

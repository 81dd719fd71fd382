"""One HTML file from the record of `tokencredit bench credit`: nothing fetched, nothing executed but its own script.

What the page of the credit benchmark shows of failures: a table by kind, and the responses that its script draws.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from tokencredit.lab.pages import page_environment, read_assets
from tokencredit.report.blocks import page_json
from tokencredit.report.format import duration, grouped, hundreds, percent
from tokencredit.report.page import content_policy
from tokencredit.storage.atomic import atomic_write
from tokencredit.text import sanitize_values
from tokencredit.version import own_version

SCRIPTS = ("dom.js", "scales.js", "detail.js", "anatomy.js")
"""Colours, legends and numbers are those of a run's token view."""

KINDS = (
    ("undecided", "of |credit| on A* near 0"),
    ("against", "against A*"),
    ("agreeing", "with A*"),
    ("missed", "of |A*| without credit"),
)
SIDES = ("right", "wrong")


def anatomy(record: Mapping[str, Any], baseline: str) -> dict[str, Any] | None:
    """None for a record made before failures were taken apart."""
    part = record.get("anatomy")
    if part is None:
        return None
    rows = [
        dict(row) | {"others": [other["method"] for other in part["rows"] if other["same_credit_as"] == row["method"]]}
        for row in part["rows"]
        if row["same_credit_as"] is None
    ]
    shown = [{key: row[key] for key in ("method", "others", "examples")} for row in rows if row["examples"]]
    return {
        "standard_errors": part["standard_errors"],
        "rows": rows,
        "block": Markup(page_json({"baseline": baseline, "rows": shown, "responses": part["responses"]})) if shown else None,
    }


Record = Mapping[str, Any]
STYLES = ("page.css", "tokens.css", "bench.css")
AGREEMENT = (
    ("pearson", "Pearson", False),
    ("auroc", "AUROC", False),
    ("on_decisive", "on decisive", True),
    ("on_format", "on format", True),
    ("same_sign", "same sign", True),
)
WIDEST = 0.25
"""Differences of cosines beyond this end at the edge of their chart: one bad method must not flatten the others."""


class Mark(NamedTuple):
    """An interval on a line from -1 to 1, in thousandths from the left; None where there is none."""

    low: float
    high: float
    middle: float
    better: bool
    worse: bool


def signed(value: float | None, digits: int = 3) -> str:
    """`+0.041`, `−0.026`, `–` for what is not known."""
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "\u2212")


def number(value: float | str | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    return "never" if value == "inf" else f"{float(value):.{digits}f}".replace("-", "\u2212")


def rollouts(value: float | str | None) -> str:
    return "–" if value is None else "never" if value == "inf" else grouped(float(value))


def mark(found: Record, reach: float) -> Mark | None:
    """Where a paired difference lies; better or worse where its 95 % interval leaves 0 out."""
    if found["mean"] is None or reach <= 0:
        return None

    def at(value: float | None) -> float:
        inside = max(-1.0, min(1.0, (found["mean"] if value is None else value) / reach))
        return round(500 + 500 * inside, 1)

    low, high = found["low"], found["high"]
    return Mark(at(low), at(high), at(found["mean"]), low is not None and low > 0, high is not None and high < 0)


def reach_of(rows: Sequence[Record]) -> float:
    """How far the chart of differences goes: to the farthest interval, but not beyond WIDEST."""
    ends = [abs(end) for row in rows for end in (row["versus_grpo"]["low"], row["versus_grpo"]["high"]) if end is not None]
    return min(WIDEST, max(ends, default=0.0))


def gradient_rows(part: Record) -> list[dict[str, Any]]:
    """One row per different direction, best first; methods with the same direction are named with it."""
    shown = [row for row in part["rows"] if row["same_direction_as"] is None]
    reach = reach_of(shown)
    return [
        dict(row)
        | {
            "others": [other["method"] for other in part["rows"] if other["same_direction_as"] == row["method"]],
            "mark": mark(row["versus_grpo"], reach),
            "mark_rest": mark(row["without_entropy"]["versus_grpo"], reach),
            "survives": row["versus_grpo"]["t"] is not None and abs(row["versus_grpo"]["t"]) >= (part["surviving_t"] or float("inf")),
        }
        for row in sorted(shown, key=lambda one: -(one["versus_grpo"]["mean"] or 0.0))
    ]


def class_rows(record: Record) -> tuple[list[str], list[dict[str, Any]]]:
    """Classes by how many tokens they have, and the coefficients of every method that is not 1 throughout."""
    classes = [name for name, _ in sorted(record["truth"]["classes"].items(), key=lambda item: -item[1]["tokens"])]
    rows = []
    for row in record["agreement"]["rows"]:
        cells = [row["by_class"].get(name, {"positive": None, "negative": None}) for name in classes]
        values = [value for cell in cells for value in cell.values() if value is not None]
        if row["same_credit_as"] is None and any(abs(value - 1) > 1e-6 for value in values):
            rows.append({"method": row["method"], "cells": cells})
    return classes, rows


def checkpoint(record: Record, baseline: str) -> dict[str, Any]:
    classes, coefficients = class_rows(record)
    agreement = record["agreement"]["rows"]
    gradient = record["gradient"]
    measured = {} if gradient is None else {which: gradient[which] for which in ("batches", "groups") if gradient[which] is not None}
    parts = {which: {**part, "rows": gradient_rows(part)} for which, part in measured.items()}
    return {
        "record": record,
        "classes": sorted(record["truth"]["classes"].items(), key=lambda item: -(item[1]["share_of_square"] or 0.0)),
        "agreement": [
            dict(row) | {"others": [other["method"] for other in agreement if other["same_credit_as"] == row["method"]]}
            for row in agreement
            if row["same_credit_as"] is None
        ],
        "coefficient_classes": classes,
        "coefficients": coefficients,
        "parts": parts,
        "anatomy": anatomy(record, baseline),
    }


def render_credit_page(result: Record) -> str:
    environment = page_environment()
    environment.filters |= {"percent": percent, "hundreds": hundreds, "grouped": grouped, "duration": duration}
    environment.filters |= {"signed": signed, "number": number, "rollouts": rollouts}
    shown: Any = sanitize_values(dict(result))
    checkpoints = [checkpoint(record, shown["rows"]["baseline"]) for record in shown["checkpoints"]]
    drawn = any(one["anatomy"] and one["anatomy"]["block"] for one in checkpoints)
    style, script = read_assets(STYLES), f'"use strict";\n(() => {{\n{read_assets(SCRIPTS)}}})();\n' if drawn else ""
    page = environment.get_template("credit_bench.html").render(
        policy=content_policy(script, style),
        style=Markup(style),
        script=Markup(script),
        result=shown,
        checkpoints=checkpoints,
        kinds=KINDS,
        sides=SIDES,
        agreement_columns=AGREEMENT,
        version=own_version(),
    )
    return page + ("" if page.endswith("\n") else "\n")


def write_credit_page(result: Record, out: Path) -> None:
    atomic_write(out, render_credit_page(result))

"""What the page of the credit benchmark shows of failures: a table by kind, and the responses that its script draws."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tokencredit.report.blocks import page_json

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

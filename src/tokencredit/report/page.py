"""Writes one self-contained HTML page from run folders.

A content security policy restricts the page to its own script and style; it loads nothing. A page of several runs lists the settings in
which they differ. Tokens and findings must fit a budget (`selection`).
"""

import hashlib
import os
from base64 import b64encode
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tokencredit.errors import ConfigError
from tokencredit.report.blocks import page_json
from tokencredit.report.charts import WITHOUT, can_draw, draw
from tokencredit.report.curves import Curve, curves
from tokencredit.report.events import notices, run_events
from tokencredit.report.format import duration, grouped, hundreds, percent
from tokencredit.report.headline import headline
from tokencredit.report.methods import flat, methods, shown
from tokencredit.report.run_reader import Run
from tokencredit.report.selection import DATA_BUDGET, PAGE_BUDGET, Shown, choose, trends
from tokencredit.stats import EXPLAINED
from tokencredit.text import brief, sanitize_values
from tokencredit.version import own_version


def write_page(folders: Sequence[Path], out: Path) -> None:
    """Render the runs and replace `out` atomically."""
    if not folders:
        raise ConfigError("no run given; name at least one run folder")
    page = render([Run(folder) for folder in folders])
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        os.replace(partial, out)
    except OSError as problem:
        raise ConfigError(f"out {out} cannot be written: {problem.strerror or problem}") from None


def render(runs: Sequence[Run]) -> str:
    """The page as text, with fewer tokens if it would exceed PAGE_BUDGET."""
    shown = [choose(run, DATA_BUDGET // len(runs)) for run in runs]
    page = _render(runs, shown)
    if len(page.encode()) > PAGE_BUDGET:
        # The other texts exceed their share of the page: give the tokens the rest, but at least 100 kB.
        spare = max(100_000, DATA_BUDGET - (len(page.encode()) - PAGE_BUDGET))
        page = _render(runs, [choose(run, spare // len(runs)) for run in runs])
    return page


def _render(runs: Sequence[Run], shown: Sequence[Shown]) -> str:
    environment = Environment(
        loader=PackageLoader("tokencredit.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script, style = script_text(), style_text()
    environment.filters |= {"percent": percent, "hundreds": hundreds, "grouped": grouped, "duration": duration}
    found = curves(runs)
    page = environment.get_template("page.html").render(
        policy=content_policy(script, style),
        style=Markup(style),
        script=Markup(script),
        runs=[
            {
                "headline": headline(run),
                "notices": notices(run),
                "events": run_events(run),
                "methods": methods(run),
                "blocks": {
                    "tokens": {step: Markup(text) for step, text in one.tokens.items()},
                    "about": {step: Markup(text) for step, text in one.about.items()},
                },
                "shown": one,
            }
            for run, one in zip(runs, shown, strict=True)
        ],
        index=Markup(page_json(_index(runs, shown))),
        curves=[_figure(curve, drawn=can_draw()) for curve in found],
        without_charts="" if can_draw() else WITHOUT,
        interval=EXPLAINED,
        differences=differences(runs) if len(runs) > 1 else [],
        version=own_version(),
    )
    return page + ("" if page.endswith("\n") else "\n")


def _figure(curve: Curve, *, drawn: bool) -> dict[str, Any]:
    return {
        "title": curve.title,
        "caption": curve.caption,
        "sentence": brief(curve.sentence, 4000),
        "ends": [(brief(one.label), curve.figure(one.points[0].value), curve.figure(one.points[-1].value)) for one in curve.series],
        "stacked": curve.stacked,
        "svg": Markup(draw(curve)) if drawn else "",
    }


def _index(runs: Sequence[Run], shown: Sequence[Shown]) -> dict[str, Any]:
    """What the script needs before it parses a step: the steps of each run and the trends of its findings."""
    return {
        "runs": [
            {
                "name": brief(run.name),
                "steps": sorted(one.about),
                "with_tokens": sorted(one.tokens),
                "left_out": one.left_out,
                "some_prompts": {str(step): list(counts) for step, counts in one.some_prompts.items()},
                "trends": sanitize_values(trends(run)),
            }
            for run, one in zip(runs, shown, strict=True)
        ]
    }


class Difference(NamedTuple):
    path: str
    values: tuple[str, ...]


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Settings with different values; an en dash stands for a setting that a run does not have.

    If runs use different types at a stage, only the type is listed; the methods section has the settings of each type.
    """
    settings = [flat(run.config) for run in runs]
    paths = dict.fromkeys(path for setting in settings for path in setting)
    found = []
    for path in paths:
        kind = path.rpartition(".")[0] + ".type"
        if path != kind and len({setting.get(kind) for setting in settings}) > 1:
            continue
        values = tuple(shown(setting[path]) if path in setting else "–" for setting in settings)
        if len(set(values)) > 1:
            found.append(Difference(brief(path), values))
    return found


STYLES = ("page.css", "events.css", "tokens.css", "findings.css")

SCRIPTS = ("dom.js", "data.js", "tree.js", "scales.js", "detail.js", "view.js", "findings.js", "plan.js", "main.js")


def _asset(name: str) -> str:
    return resources.files("tokencredit.report").joinpath("assets", name).read_text(encoding="utf-8")


def script_text() -> str:
    """All scripts joined, so that one hash covers them."""
    return '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"


def style_text() -> str:
    return "\n".join(_asset(name) for name in STYLES)


def content_policy(script: str, style: str) -> str:
    """A content security policy that allows this script and this style only."""

    def hashed(text: str) -> str:
        return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; base-uri 'none'; form-action 'none'"

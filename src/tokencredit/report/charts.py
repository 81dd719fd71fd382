"""Draws curves as small SVG charts. Only this module needs altair and vl-convert.

`draw` renders a chart with placeholder colours; `themed` replaces those with CSS classes and removes everything but shapes and text.
"""

import re
from collections.abc import Mapping
from importlib import util
from xml.etree import ElementTree

from tokencredit.report.curves import Curve, Series

WIDTH, HEIGHT = 252, 118

SERIES = 6
"""Number of line colours; further runs repeat the colours with another dash."""

DASHES = ([1, 0], [6, 3], [2, 2])

INK, GRID = "#020100", "#020200"

STAND_INS = {f"#0100{index:02}": f"series-{index}" for index in range(SERIES)} | {INK: "soft", GRID: "grid"}
"""Placeholder colour of the drawing -> CSS class of the page. No real chart uses these colours."""

WITHOUT = "No charts: altair and vl-convert-python are not installed. The numbers are in metrics.jsonl."


def can_draw() -> bool:
    return util.find_spec("altair") is not None and util.find_spec("vl_convert") is not None


def draw(curve: Curve) -> str:
    """One chart as SVG with CSS classes as colours. Series differ by colour and dash, in their order."""
    import altair
    import vl_convert

    number_format = "%" if curve.percent else "~s" if _largest(curve) >= 1000 else "~g"
    y = altair.Y(
        "high:Q" if curve.stacked else "value:Q",
        title=None,
        axis=altair.Axis(format=number_format, tickCount=4),
        scale=altair.Scale(domain=[0, 1])
        if curve.title.startswith("Held-out")
        else altair.Scale(zero=curve.stacked or curve.percent, nice=True),
    )
    x = altair.X("step:Q", title=None, axis=altair.Axis(tickCount=5, format="d", grid=False), scale=altair.Scale(nice=False))
    layers = []
    below: dict[int, float] = {}
    for index, series in enumerate(curve.series):
        colour = f"#0100{index % SERIES:02}"
        if curve.stacked:
            rows = [
                {"step": point.step, "low": below.get(point.step, 0.0), "high": below.get(point.step, 0.0) + point.value}
                for point in series.points
            ]
            below = {row["step"]: row["high"] for row in rows}
            layers.append(altair.Chart(altair.Data(values=rows)).mark_area(color=colour, opacity=0.85).encode(x=x, y=y, y2="low:Q"))
            continue
        base = altair.Chart(altair.Data(values=_rows(series)))
        dash = DASHES[index // SERIES % len(DASHES)] if index >= SERIES else DASHES[index % len(DASHES)]
        if any(point.low is not None for point in series.points):
            layers.append(base.mark_area(color=colour, opacity=0.16).encode(x=x, y=altair.Y("low:Q", title=None), y2="high:Q"))
        few = len(series.points) <= 40
        layers.append(base.mark_line(color=colour, strokeWidth=1.8, strokeDash=dash).encode(x=x, y=y))
        if few:
            layers.append(base.mark_circle(color=colour, size=13, opacity=1).encode(x=x, y=y))
    chart = altair.layer(*layers).properties(width=WIDTH, height=HEIGHT, background="transparent")
    axis = altair.AxisConfig(labelColor=INK, domain=False, ticks=False, gridColor=GRID, labelFontSize=10.5, labelPadding=6)
    chart = chart.configure_view(stroke=None).configure(axis=axis)
    return themed(vl_convert.vegalite_to_svg(chart.to_dict()), STAND_INS)


def _rows(series: Series) -> list[dict[str, float | None]]:
    return [point._asdict() for point in series.points]


def _largest(curve: Curve) -> float:
    return max(abs(point.value) for series in curve.series for point in series.points)


SVG = "http://www.w3.org/2000/svg"

SHAPES = {"svg", "g", "path", "line", "rect", "text", "tspan", "circle"}

ATTRIBUTES = {
    "d", "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "r", "cx", "cy", "width", "height", "transform", "viewBox", "opacity", "display",
    "fill", "stroke", "fill-opacity", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
    "stroke-miterlimit", "text-anchor", "font-size", "font-weight",
}  # fmt: skip

NUMBER = re.compile(r"\d+\.\d{2,}")


def themed(svg: str, classes: Mapping[str, str]) -> str:
    """Replace each placeholder colour (`#010200`) by a class (`stroke-ink`), so that the theme of the page colours the drawing.

    Other colours, and elements that are not in SHAPES, are removed. Numbers keep one decimal, a tenth of a pixel.
    """
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg)
    _clean(root, classes)
    root.attrib = {"viewBox": root.attrib["viewBox"], "class": "chart", "aria-hidden": "true", "focusable": "false"}
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, classes: Mapping[str, str]) -> None:
    for child in list(element):
        name = child.tag.removeprefix(f"{{{SVG}}}") if isinstance(child.tag, str) else ""
        if name not in SHAPES or child.attrib.get("display") == "none" or "background" in child.attrib.get("class", "").split():
            element.remove(child)
        else:
            _clean(child, classes)
    if element.tag == f"{{{SVG}}}g" and not len(element):
        element.attrib = {}
    names = [f"{kind}-{classes[colour]}" for kind in ("fill", "stroke") if (colour := element.attrib.get(kind, "")) in classes]
    kept = {key: NUMBER.sub(_tenth, value) for key, value in element.attrib.items() if key in ATTRIBUTES}
    for kind in ("fill", "stroke"):
        if kept.get(kind) not in (None, "none"):
            del kept[kind]
    element.attrib = kept | ({"class": " ".join(names)} if names else {})


def _tenth(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")

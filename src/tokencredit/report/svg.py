"""Charts made fit for the page: no style attributes, no colours of their own, nothing but shapes and text."""

import re
from collections.abc import Mapping
from xml.etree import ElementTree

SVG = "http://www.w3.org/2000/svg"
SHAPES = {"svg", "g", "path", "line", "rect", "text", "tspan", "circle"}
ATTRIBUTES = {
    "d", "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "r", "cx", "cy", "width", "height", "transform", "viewBox", "opacity", "display",
    "fill", "stroke", "fill-opacity", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
    "stroke-miterlimit", "text-anchor", "font-size", "font-weight",
}  # fmt: skip
NUMBER = re.compile(r"\d+\.\d{2,}")


def themed(svg: str, classes: Mapping[str, str]) -> str:
    """The drawing with each stand-in colour (`#010200`) replaced by a class (`stroke-ink`), so that the page's theme colours it.

    Every other colour is dropped, as is everything that is not plain drawing. Numbers keep one decimal: a tenth of a pixel.
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

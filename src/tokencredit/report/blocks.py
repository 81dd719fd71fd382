"""Data inside the page: compact columns, as JSON that cannot close the HTML element around it."""

import json
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tokencredit.report.token_view import Response, StepTokens, number
from tokencredit.text import brief, sanitize

UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
SIGNIFICANT, OF_EVIDENCE, OF_FINDINGS = 4, 3, 9
"""Significant digits: of token columns, of evidence (by far the most numbers), of findings (the page rounds those for display)."""


def page_json(value: object) -> str:
    """JSON with <, >, & and line separators as escapes, so that no text in it can act as markup."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(UNSAFE)


def rounded(value: float | None, digits: int = SIGNIFICANT) -> float | int | None:
    """Round to significant digits; 2.0 becomes 2; missing, NaN and infinite values become None."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _column(values: Sequence[Any]) -> Any:
    """One value if all are equal (also if all are None), else the list."""
    return values[0] if values and values.count(values[0]) == len(values) else list(values)


class _Interned:
    """Stores each distinct text once; the page refers to it by index."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        self.shown = shown
        self.places: dict[Any, int] = {}
        self.texts: list[str] = []

    def place(self, key: Any, text: str) -> int:
        if key not in self.places:
            self.places[key] = len(self.texts)
            self.texts.append(self.shown(text))
        return self.places[key]


def _truncated(response: Response, longest: int | None) -> Response:
    return response if longest is None else response._replace(stop=min(response.stop, response.start + longest))


def token_block(tokens: StepTokens, groups: Collection[int] | None = None, *, longest: int | None = None) -> dict[str, Any]:
    """The data of one step, or of some of its prompts: tokens in display order, evidence for the responses that have it.

    A response of more than `longest` tokens is truncated; `length` holds its full length.
    """
    shown = {
        group: [_truncated(sibling, longest) for sibling in siblings]
        for group, siblings in tokens.by_group.items()
        if groups is None or group in groups
    }
    responses = [response for siblings in shown.values() for response in siblings]
    order = [at for response in responses for at in range(response.start, response.stop)]
    columns, texts, classes = tokens.columns, _Interned(sanitize), _Interned(brief)
    numbers = {
        name: [rounded(value) for value in (values[at] for at in order)]
        for name in ("logp", "behavior_logp", "entropy", "coefficient", "credit")
        for values in [tokens.values(name)]
    }
    if numbers["behavior_logp"] == numbers["logp"]:
        del numbers["behavior_logp"]
    right = {True: 1, False: 0}
    lengths = {response.row: response.stop - response.start for response in tokens.responses}
    place = 0
    prompts = []
    for group, siblings in shown.items():
        prompts.append({"group": group, "prompt": sanitize(tokens.prompt(group)), "first": place, "count": len(siblings)})
        place += len(siblings)
    return {
        "step": tokens.step,
        "texts": texts.texts,
        "classes": classes.texts,
        "prompts": prompts,
        "responses": {
            "row": [response.row for response in responses],
            "count": [response.stop - response.start for response in responses],
            "length": [lengths[response.row] for response in responses],
            "score": [rounded(response.score) for response in responses],
            **{
                name: [rounded(number(columns[name][response.start])) for response in responses]
                for name in ("reward", "advantage", "optimizer_step")
            },
        },
        "tokens": {
            "text": [texts.place((columns["token_id"][at], columns["text"][at]), columns["text"][at] or "") for at in order],
            "class": [classes.place(columns["token_class"][at], columns["token_class"][at] or "other") for at in order],
            "right": _column([right.get(columns["step_right"][at]) for at in order]),
            **{name: _column(values) for name, values in numbers.items()},
        },
        **_evidence(tokens, responses),
    }


def _evidence(tokens: StepTokens, responses: Sequence[Response]) -> dict[str, Any]:
    """`covers`: lists of response indices; `evidence`: name -> index of its cover, and the values of those responses in order."""
    covers: list[list[int]] = []
    evidence: dict[str, Any] = {}
    for name, values in tokens.evidence.items():
        cover = [at for at, one in enumerate(responses) if any(value is not None for value in values[one.start : one.stop])]
        if cover not in covers:
            covers.append(cover)
        covered = (values[at] for place in cover for at in range(responses[place].start, responses[place].stop))
        evidence[name] = [covers.index(cover), [rounded(value, OF_EVIDENCE) for value in covered]]
    return {"covers": covers, "evidence": evidence}

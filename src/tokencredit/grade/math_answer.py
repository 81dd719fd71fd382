"""Compare mathematical answers with math-verify. Only child processes import this module: sympy takes half a second to load.

math-verify's own time limits are off: they turn "took too long" into "wrong", and their signal handler cannot interrupt C code.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

from tokencredit.grade.protocol import Verdict, ungraded

LONGEST_ANSWER = 1000
"""Characters; longer text is no answer. The patterns of math-verify are slow on long texts."""

BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
MARK = "####"
"""Marks the answer, on the last line only: elsewhere it is a heading."""
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)")
MIXED_NUMBER = re.compile(r"([-+]?\d+) (\d+)/(\d+)")
SPACED_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
NUMBER_AND_WORDS = re.compile(rf"(?:\\?\$)?({NUMBER})(?: [A-Za-z]{{3,}})+")
WORDS = re.compile(r"[A-Za-z]{4,}(?:[ -][A-Za-z]+)*")

# math-verify would warn at every start that its time limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def grade_math(gold: str, response: str) -> float | Verdict:
    r"""1 if the response's answer equals the gold answer.

    The answer is the content of the last closed `\boxed{...}`, else the last line if it begins with `####`, else the
    expression near the end that math-verify extracts. A response without a readable answer is wrong; a gold answer that
    cannot be read leaves the response ungraded.
    """
    expected = parsed_gold(gold)
    if not expected:
        return ungraded(f"the gold answer {gold[:60]!r} cannot be read as mathematics")
    answer = marked_answer(response)
    found = parsed(response[-LONGEST_ANSWER:]) if answer is None else parsed_answer(answer)
    return float(bool(found) and verify(list(expected), found, timeout_seconds=0, raise_on_error=True))


def marked_answer(text: str) -> str | None:
    box = last_box(text)
    if box is not None:
        return box
    last_line = text.rstrip().rsplit("\n", 1)[-1]
    return last_line.removeprefix(MARK) if last_line.startswith(MARK) else None


def last_box(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}`, of nested boxes the inner one. One pass, however many braces are open."""
    opened: list[int | None] = []
    """Per open brace: where the content of its box begins, or None for a brace that is no box."""
    begin = end = -1
    for piece in BRACE.finditer(text):
        if piece[0].endswith("{") and piece[0] != r"\{":
            opened.append(piece.end() if piece[0] != "{" else None)
        elif piece[0] == "}" and opened:
            start = opened.pop()
            if start is not None and start > begin:
                begin, end = start, piece.start()
    return None if end < 0 else text[begin:end]


@lru_cache(maxsize=1024)
def parsed_gold(gold: str) -> tuple[Any, ...]:
    """Cached, because all responses to one prompt are graded against the same gold answer."""
    marked = marked_answer(gold)
    return tuple(parsed_answer(gold if marked is None else marked))


def parsed_answer(answer: str) -> list[Any]:
    """Parse text that is only an answer: as LaTeX, else as a plain expression."""
    text = as_latex(answer)
    return [] if not text or len(text) > LONGEST_ANSWER else parsed(rf"\boxed{{{text}}}") or parsed(text)


def parsed(text: str) -> list[Any]:
    """The expressions that math-verify finds in a text. A parse error means that there is no answer, unless memory ran out."""
    try:
        return parse(text, parsing_timeout=0, raise_on_error=True, fallback_mode="no_fallback")
    except MemoryError:
        raise
    except Exception:
        return []


def as_latex(answer: str) -> str:
    """Rewrite plain notations that LaTeX would read differently: 1e5, 3 1/2, 1 000, 2**10, 12 dollars, Monday."""
    text = " ".join(answer.replace("**", "^").split()).strip("$").strip().rstrip(".,;").strip()
    for pattern, rewritten in (
        (SCIENTIFIC, lambda match: rf"{match[1]} \cdot 10^{{{int(match[2])}}}"),
        (MIXED_NUMBER, lambda match: rf"{match[1]}\frac{{{match[2]}}}{{{match[3]}}}"),
        (SPACED_THOUSANDS, lambda match: match[0].replace(" ", "")),
        (NUMBER_AND_WORDS, lambda match: match[1]),
        (WORDS, lambda match: rf"\text{{{match[0]}}}"),
    ):
        match = pattern.fullmatch(text)
        if match is not None:
            return rewritten(match)
    return text

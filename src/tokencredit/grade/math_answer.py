"""Mathematical answers compared by math-verify. Imported in the child process alone: sympy takes half a second to load.

math-verify's own time limits are off. They turn "took too long" into "wrong", and a signal handler cannot interrupt C code.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

from tokencredit.grade.protocol import Verdict, ungraded

LONGEST_ANSWER = 1000
"""Characters; what is longer is no answer. The patterns of math-verify are slow on long texts."""

BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
MARK = "####"
"""Before the answer, on the last line alone: elsewhere it is a heading."""
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)")
MIXED_NUMBER = re.compile(r"([-+]?\d+) (\d+)/(\d+)")
SPACED_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
NUMBER_AND_WORDS = re.compile(rf"(?:\\?\$)?({NUMBER})(?: [A-Za-z]{{3,}})+")
WORDS = re.compile(r"[A-Za-z]{4,}(?:[ -][A-Za-z]+)*")

# Says at every start that its time limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def grade_math(gold: str, response: str) -> float | Verdict:
    r"""1 if the answer that the response gives equals the gold answer.

    That is what stands in its last closed `\boxed{...}`, else on its last line if that begins with `####`, else the expression near
    its end that math-verify takes for the answer. A response in which no answer can be read is wrong; a gold answer that cannot
    be read grades nothing.
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
    r"""What stands in the last `\boxed{...}` that is closed; of nested ones, in the inner. One pass, however many are open."""
    opened: list[int | None] = []
    """For every open brace: where the content of its box begins, or None for a brace of another kind."""
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
    """Responses to one prompt are graded one after the other against the same gold answer."""
    marked = marked_answer(gold)
    return tuple(parsed_answer(gold if marked is None else marked))


def parsed_answer(answer: str) -> list[Any]:
    """An answer that stands alone: as LaTeX, else as a plain expression."""
    text = as_latex(answer)
    return [] if not text or len(text) > LONGEST_ANSWER else parsed(rf"\boxed{{{text}}}") or parsed(text)


def parsed(text: str) -> list[Any]:
    """What math-verify reads in a text. An error in reading means that there is no answer to read, unless memory ran out."""
    try:
        return parse(text, parsing_timeout=0, raise_on_error=True, fallback_mode="no_fallback")
    except MemoryError:
        raise
    except Exception:
        return []


def as_latex(answer: str) -> str:
    """Plain ways of writing that LaTeX would read as something else: 1e5, 3 1/2, 1 000, 2**10, 12 dollars, Monday."""
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

"""Text for people: suggestions for misspelled names, and text of models made safe to display."""

import difflib
import unicodedata
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` if a known name is close, else the list of known names."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there is {', '.join(known)}"


NAMED = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡"}
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, format characters (bidi overrides, joiners), lone surrogates, private and unassigned ones, line separators."""

BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters that are displayed blank: Hangul fillers, the empty Braille cell."""

COMBINING = frozenset({"Mn", "Me"})
MARKS_IN_A_ROW = 2
LONGEST = 2000


def sanitize(text: str) -> str:
    """Make invisible characters visible, and characters that move other text harmless.

    `⏎` for a newline, `␀`-like signs for controls, `⟨U+202E⟩` for other hidden characters, `◌` under a combining mark at the start.
    More than two combining marks in a row are spelled out too: stacked they would cover the lines above.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for index, character in enumerate(text):
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in COMBINING else 0
        if character in NAMED:
            shown.append(NAMED[character])
        elif ord(character) < 32:
            shown.append(chr(0x2400 + ord(character)))
        elif kind in HIDDEN or character in BLANK or marks > MARKS_IN_A_ROW:
            shown.append(f"⟨U+{ord(character):04X}⟩")
        else:
            shown.append("◌" + character if marks and index == 0 else character)
    return "".join(shown)


def brief(text: str, longest: int = 400) -> str:
    """Sanitized text, truncated to `longest` characters."""
    if len(text) <= longest:
        return sanitize(text)
    return f"{sanitize(text[:longest])}… ({len(text) - longest:,} more characters)"


def sanitize_values(value: object) -> object:
    """The value with every string in it, keys included, sanitized and truncated to LONGEST characters."""
    if isinstance(value, str):
        return brief(value, LONGEST)
    if isinstance(value, dict):
        return {brief(str(key), LONGEST): sanitize_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [sanitize_values(inner) for inner in value]
    return value

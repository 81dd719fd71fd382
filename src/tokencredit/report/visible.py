"""Text as people may safely look at it: nothing invisible, nothing that moves other text."""

import unicodedata

NAMED = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡"}
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, format characters (bidi overrides, joiners), lone surrogates, private and unassigned ones, line separators."""

COMBINING = frozenset({"Mn", "Me"})
MARKS_IN_A_ROW = 2


def visible(text: str) -> str:
    """`⏎` for a newline, `␀`-like signs for controls, `⟨U+202E⟩` for the rest that hides, `◌` under a mark with nothing to sit on.

    More than two combining marks in a row are spelled out too: piled up they would cover the lines above.
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
        elif kind in HIDDEN or marks > MARKS_IN_A_ROW:
            shown.append(f"⟨U+{ord(character):04X}⟩")
        else:
            shown.append("◌" + character if marks and index == 0 else character)
    return "".join(shown)


def visible_in(value: object) -> object:
    """The same for every string inside lists and tables, keys included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): visible_in(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [visible_in(inner) for inner in value]
    return value

"""Text in Markdown that stays text, whoever wrote it."""

import re
from collections.abc import Sequence

from tokencredit.text import brief

SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""Signs that Markdown, HTML inside of it, or a link that makes itself would read as more than a sign."""
AT_THE_START = re.compile(r"^(\s*\d*)(?=[#+=.)-])")
"""Before what would begin a heading or a list of its own."""


def plain(text: object, longest: int = 400) -> str:
    """On one line, nothing hidden, and nothing that is markup."""
    return AT_THE_START.sub(r"\1\\", SPECIAL.sub(r"\\\g<0>", brief(str(text), longest)))


def code(text: object, longest: int = 400) -> str:
    """A code span; its fence is longer than any row of backticks inside."""
    said = brief(str(text), longest)
    fence = "`" * (_longest_row(said) + 1)
    padded = f" {said} " if said.startswith("`") or said.endswith("`") else said
    # A table is cut at every pipe, also in code.
    return f"{fence}{padded}{fence}".replace("|", "\\|")


def block(text: str, language: str = "") -> str:
    fence = "`" * max(3, _longest_row(text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _longest_row(text: str) -> int:
    return max((len(row) for row in re.findall("`+", text)), default=0)

"""Scorers of reasoning-gym that hand a response to Python's `eval`, and what it may hold so that arithmetic is all it can do.

Some compare with `eval(answer)`, others parse with sympy, which evaluates too. Anything else than the characters and words
here is a wrong answer and never reaches them.
"""

import re
from typing import NamedTuple


class Harmless(NamedTuple):
    characters: str
    """As inside the brackets of a regular expression; neither underscores beside letters nor a dot before a letter."""
    words: frozenset[str] = frozenset()
    """Names of more than one letter."""
    never: tuple[str, ...] = ()


FUNCTIONS = frozenset(("sin", "cos", "tan", "exp", "log", "ln", "sqrt", "pi"))
GRID = Harmless(r"0-9\[\], \n")

EVALUATED: dict[str, Harmless] = {
    "binary_matrix": GRID,
    "spiral_matrix": GRID,
    "n_queens": Harmless(r"Q_\[\]'\", \n"),
    "string_insertion": Harmless(r"A-E\[\]'\", "),
    "countdown": Harmless(r"0-9+\-*/(). ", never=("**",)),
    "simple_integration": Harmless(r"0-9A-Za-z+\-*/^(). ", FUNCTIONS),
}

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]")


def harmless(dataset: str, answer: str) -> bool:
    """True where the dataset's scorer evaluates nothing of an answer."""
    allowed = EVALUATED.get(dataset)
    if allowed is None:
        return True
    if not re.fullmatch(f"[{allowed.characters}]*", answer) or _ATTRIBUTE.search(answer):
        return False
    words = _WORD.findall(answer) if "a-z" in allowed.characters else []
    return all(word in allowed.words for word in words) and not any(part in answer for part in allowed.never)

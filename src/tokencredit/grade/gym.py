"""Grade with reasoning-gym's own scorers. They parse model-written text, so they run only in a grading process.

Some scorers call `eval(answer)`, others parse with sympy, which evaluates too. `EVALUATED` lists the characters and words
that an answer to their datasets may contain, so that arithmetic is all it can do. Any other answer is wrong and never
reaches the scorer.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from tokencredit.grade.graders import compiled, last_match
from tokencredit.grade.gym_entries import Entry, GymGold, checksum, known_datasets, make_entry
from tokencredit.grade.protocol import Verdict, ungraded


class Allowed(NamedTuple):
    """What an answer may contain if its scorer evaluates it."""

    characters: str
    """As inside the brackets of a regular expression. No entry allows underscores together with lower-case letters, so that an
    answer cannot hold a dunder name; a dot before a letter is always refused.
    """
    words: frozenset[str] = frozenset()
    """Allowed names of more than one letter."""
    never: tuple[str, ...] = ()
    """Substrings that are refused although their characters are allowed."""


FUNCTIONS = frozenset(("sin", "cos", "tan", "exp", "log", "ln", "sqrt", "pi"))
GRID = Allowed(r"0-9\[\], \n")

EVALUATED: dict[str, Allowed] = {
    "binary_matrix": GRID,
    "spiral_matrix": GRID,
    "n_queens": Allowed(r"Q_\[\]'\", \n"),
    "string_insertion": Allowed(r"A-E\[\]'\", "),
    "countdown": Allowed(r"0-9+\-*/(). ", never=("**",)),
    "simple_integration": Allowed(r"0-9A-Za-z+\-*/^(). ", FUNCTIONS),
}

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]")


def harmless(dataset: str, answer: str) -> bool:
    """Whether the dataset's scorer may see the answer: it evaluates no answers, or the answer holds only what is allowed."""
    allowed = EVALUATED.get(dataset)
    if allowed is None:
        return True
    if not re.fullmatch(f"[{allowed.characters}]*", answer) or _ATTRIBUTE.search(answer):
        return False
    words = _WORD.findall(answer) if "a-z" in allowed.characters else []
    return all(word in allowed.words for word in words) and not any(part in answer for part in allowed.never)


def grade_gym(
    gold: str,
    response: str,
    *,
    parameters: Mapping[str, Mapping[str, Any]],
    answer_pattern: str | None = None,
    threshold: float = 0.9999,
    partial_credit: bool = False,
) -> float | Verdict:
    """1 if the scorer gives the response's answer at least `threshold`, else 0; with `partial_credit` the scorer's own score."""
    named = GymGold.loads(gold)
    entry = make_entry(named.dataset, parameters.get(named.dataset, {}), named.number)
    if checksum(entry.made["question"]) != named.question:
        return ungraded(f"reasoning-gym's {named.dataset} generates another question in this process than in the run")
    answer = response.strip() if answer_pattern is None else last_match(compiled(answer_pattern, "task.answer_pattern"), response)
    if answer is None or not harmless(named.dataset, answer):
        return 0.0
    score = _score(entry, answer)
    if partial_credit:
        return score
    return float(score >= threshold)


def _score(entry: Entry, answer: str) -> float:
    """0 where the scorer raises on this answer but not on the gold answer: it could not parse the answer.

    Where it raises on the gold answer too, the exception leaves the response ungraded.
    """
    try:
        return _scored(entry, answer)
    except MemoryError:
        raise
    except Exception:
        _scored(entry, entry.made["answer"])
        return 0.0


def _scored(entry: Entry, answer: str) -> float:
    # A scorer may change its arguments.
    return float(entry.dataset.score_answer(answer, deepcopy(entry.made)))


# Import the package now, before the memory limit is set.
known_datasets()

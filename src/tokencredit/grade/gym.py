"""`reasoning-gym`: its own scorers, which read what a model wrote and so run in a grading process alone.

Scorers of reasoning-gym that hand a response to Python's `eval`, and what it may hold so that arithmetic is all it can do.

Some compare with `eval(answer)`, others parse with sympy, which evaluates too. Anything else than the characters and words
here is a wrong answer and never reaches them.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from tokencredit.grade.graders import compiled, last_match
from tokencredit.grade.gym_entries import Entry, GymGold, checksum, known_datasets, make_entry
from tokencredit.grade.protocol import Verdict, ungraded


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


def grade_gym(
    gold: str,
    response: str,
    *,
    parameters: Mapping[str, Mapping[str, Any]],
    answer_pattern: str | None = None,
    threshold: float = 0.9999,
    partial_credit: bool = False,
) -> float | Verdict:
    """1 if the scorer gives at least `threshold` to the answer in the response, else 0; with `partial_credit` what it gives."""
    asked = GymGold.loads(gold)
    entry = make_entry(asked.dataset, parameters.get(asked.dataset, {}), asked.number)
    if checksum(entry.made["question"]) != asked.question:
        return ungraded(f"reasoning-gym's {asked.dataset} asks something else in this process than in the run")
    answer = response.strip() if answer_pattern is None else last_match(compiled(answer_pattern, "task.answer_pattern"), response)
    if answer is None or not harmless(asked.dataset, answer):
        return 0.0
    score = _score(entry, answer)
    if partial_credit:
        return score
    return float(score >= threshold)


def _score(entry: Entry, answer: str) -> float:
    """A scorer that fails on this answer, but not on its own, could not read it: 0. One that fails on its own has graded nothing."""
    try:
        return _scored(entry, answer)
    except MemoryError:
        raise
    except Exception:
        _scored(entry, entry.made["answer"])
        return 0.0


def _scored(entry: Entry, answer: str) -> float:
    # A scorer may change what it is given.
    return float(entry.dataset.score_answer(answer, deepcopy(entry.made)))


# Imported now, while memory is not yet bounded.
known_datasets()

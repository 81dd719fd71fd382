"""`reasoning-gym`: its own scorers, which read what a model wrote and so run in a grading process alone."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from tokencredit.grade.gym_entries import Entry, GymGold, checksum, known_datasets, make_entry
from tokencredit.grade.gym_guard import harmless
from tokencredit.grade.text import compiled, last_match
from tokencredit.grade.verdict import Verdict, ungraded


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

"""Graders that compare text."""

import re
from functools import lru_cache

from tokencredit.errors import ConfigError


def grade_exact(gold: str, response: str, *, fold_case: bool = False) -> float:
    """1 if the response is the gold answer, but for white space around either (and case, if asked)."""
    one, two = gold.strip(), response.strip()
    return float(one.casefold() == two.casefold() if fold_case else one == two)


def grade_regex(gold: str, response: str, *, pattern: str) -> float:
    """1 if the pattern's last match in the response holds the gold answer, but for white space around either; 0 if none does."""
    found = last_match(compiled(pattern), response)
    return float(found is not None and found.strip() == gold.strip())


@lru_cache(maxsize=8)
def compiled(pattern: str, field: str = "pattern") -> re.Pattern[str]:
    """A pattern with at most one group, or ConfigError."""
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as problem:
        raise ConfigError(f"{field} is {pattern!r}, which is no regular expression: {problem}") from None
    if expression.groups > 1:
        raise ConfigError(f"{field} is {pattern!r} with {expression.groups} groups; keep one and write the others as (?:...)")
    return expression


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """What the last match's group holds, or the whole match where the pattern has no group."""
    found = None
    for match in pattern.finditer(text):
        found = match[pattern.groups]
    return found

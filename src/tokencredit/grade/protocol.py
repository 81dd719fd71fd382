"""What the pool and its grading processes exchange: messages, limits and verdicts.

A message is one JSON object per line, as ASCII. Never pickle: a grading process may send back data and nothing else.
"""

import json
import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from tokencredit.errors import ConfigError

LONGEST_REASON = 300
"""Characters."""


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; ValueError for anything else."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"a JSON object was expected, not {type(message).__name__}")
    return message


def printable(reason: object) -> str:
    """A reason that any log can hold: one short line without unpaired surrogates or control characters."""
    text = str(reason).encode("utf-8", "replace").decode("utf-8")
    line = " ".join("".join(character if character.isprintable() else " " for character in text[: 4 * LONGEST_REASON]).split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeLimits:
    """How much one verdict, and one grading process, may use."""

    seconds: float = 5.0
    """Wall-clock time for one response, after which its process is killed."""
    memory_mib: int = 1024
    """Address space that a process may add to what its imports use."""
    recycle_after: int = 5000
    """Responses after which a process is replaced, so that leaks and caches of a grader stay bounded."""
    longest_response: int = 200_000
    """Characters; a longer response is not graded."""
    largest_answer: int = 65_536
    """Bytes of one verdict's message."""
    start_seconds: float = 60.0
    """Wall-clock time for a process to start and import its grader."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
                raise ConfigError(f"grade limit {field.name} is {value!r}; give a finite number above 0")


class Verdict(NamedTuple):
    """The grader's result for one response."""

    score: float
    """NaN: the response could not be graded, which is never the same as wrong."""
    reason: str | None = None
    """Why the response could not be graded."""


def ungraded(reason: str) -> Verdict:
    return Verdict(math.nan, reason)

"""One JSON object per line, as ASCII. Never pickle: what comes back from a grader is data and nothing else."""

import json
from typing import Any

LONGEST_REASON = 300


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """ValueError for what is not one JSON object."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"a JSON object was expected, not {type(message).__name__}")
    return message


def printable(reason: object) -> str:
    """A reason that any log can hold: one short line without halves of character pairs or control characters."""
    text = str(reason).encode("utf-8", "replace").decode("utf-8")
    line = " ".join("".join(character if character.isprintable() else " " for character in text[: 4 * LONGEST_REASON]).split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."

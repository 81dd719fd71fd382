"""A task in one word: `countdown`, or with what it is about: `reasoning-gym:gcd`, `jsonl:rows.jsonl`, `own:my_task.py:Capitals`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokencredit.config.choices import CHOICES
from tokencredit.config.messages import shortened
from tokencredit.errors import ConfigError
from tokencredit.text import nearest

MAIN_FIELDS = {"jsonl": "path", "code": "path", "reasoning-gym": "dataset", "own": "path"}
"""What may follow the colon."""
FLAG = "--task"


def task_fields(word: str) -> dict[str, str]:
    """`reasoning-gym:gcd` -> {"type": "reasoning-gym", "dataset": "gcd"}."""
    kind, colon, about = word.partition(":")
    if kind not in CHOICES["task"]:
        raise ConfigError(f"task {shortened(word)} is not known; {nearest(kind[:60], CHOICES['task'])}")
    if colon and (kind not in MAIN_FIELDS or not about):
        takes = f"write {kind}:{MAIN_FIELDS[kind].upper()}" if kind in MAIN_FIELDS else f"nothing follows {kind!r}"
        raise ConfigError(f"task {shortened(word)} cannot be read: {takes}")
    return {"type": kind} | ({MAIN_FIELDS[kind]: about} if colon else {})


def with_task_fields(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """A layer of a configuration whose task may be one word."""
    return {**layer, "task": task_fields(layer["task"])} if isinstance(layer.get("task"), str) else layer


def with_task_flags(flags: Sequence[str]) -> list[str]:
    """`--task reasoning-gym:gcd` -> `--task.type reasoning-gym --task.dataset gcd`, so that its dials can follow."""
    spelled_out: list[str] = []
    words = iter(flags)
    for word in words:
        name, equals, value = word.partition("=")
        if name != FLAG:
            spelled_out.append(word)
            continue
        given = value if equals else next(words, None)
        if not given or given.startswith("-"):
            raise ConfigError(f"{FLAG} needs the name of a task; there is {', '.join(CHOICES['task'])}")
        for field, text in task_fields(given).items():
            spelled_out += [f"{FLAG}.{field}", text]
    return spelled_out

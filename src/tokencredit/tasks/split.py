"""Train and held-out problems that cannot overlap: the prompt's own text decides its side."""

import zlib
from collections.abc import Callable
from random import Random

from tokencredit.errors import ConfigError
from tokencredit.tasks.protocol import Problem, Split

HELD_OUT_ONE_IN = 10


def split_of(prompt: str) -> Split:
    return "held-out" if zlib.crc32(prompt.encode()) % HELD_OUT_ONE_IN == 0 else "train"


def draw_problems(make: Callable[[Random], Problem], count: int, *, split: Split, seed: int) -> list[Problem]:
    """`count` problems of one split by rejection, a pure function of the seed; held-out ones are distinct."""
    rng = Random(f"{split}/{seed}")
    problems: list[Problem] = []
    seen: set[str] = set()
    attempts = 0
    while len(problems) < count:
        attempts += 1
        if attempts > 1000 * (count + 10):
            raise ConfigError(
                f"task cannot supply {count} {split} problems: only {len(problems)} found; ask for fewer or raise the difficulty"
            )
        problem = make(rng)
        if split_of(problem.prompt) != split or (split == "held-out" and problem.prompt in seen):
            continue
        seen.add(problem.prompt)
        problems.append(problem)
    return problems

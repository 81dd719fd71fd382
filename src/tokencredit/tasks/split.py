"""Train and held-out problems that cannot overlap: the prompt's own text decides its side."""

import zlib
from collections.abc import Callable
from random import Random

from tokencredit.errors import ConfigError
from tokencredit.tasks.leaks import alike
from tokencredit.tasks.protocol import Problem, Split

HELD_OUT_ONE_IN = 10
PATIENCE = 20_000
"""Problems in a row that are of the other split or known already, after which there are taken to be no more."""


def split_of(prompt: str) -> Split:
    """Prompts that ask the same are on the same side."""
    return "held-out" if zlib.crc32(alike(prompt).encode()) % HELD_OUT_ONE_IN == 0 else "train"


def draw_problems(
    make: Callable[[Random], Problem], count: int, *, split: Split, seed: int, patience: int = PATIENCE, hidden_answer: bool = False
) -> list[Problem]:
    """`count` problems of one split by rejection, a pure function of the seed; held-out ones are distinct.

    `hidden_answer`: the prompt does not decide the answer, so one prompt with two answers is two problems.
    """
    rng = Random(f"{split}/{seed}")
    problems: list[Problem] = []
    seen: set[Problem | str] = set()
    rejected = 0
    while len(problems) < count:
        problem = make(rng)
        name = problem if hidden_answer else alike(problem.prompt)
        if split_of(problem.prompt) != split or (split == "held-out" and name in seen):
            rejected += 1
            if rejected > patience:
                raise ConfigError(
                    f"task cannot supply {count} {split} problems: only {len(problems)} found; ask for fewer or raise the difficulty"
                )
            continue
        rejected = 0
        seen.add(name)
        problems.append(problem)
    return problems

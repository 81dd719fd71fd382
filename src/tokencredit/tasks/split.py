"""Train and held-out problems that cannot overlap: the prompt's own text decides its side.

Questions that stand on both sides: a policy would be tested on what it was trained on.
"""

import zlib
from collections.abc import Callable, Iterable
from random import Random

from tokencredit.errors import ConfigError
from tokencredit.tasks.protocol import Problem, Split


def alike(prompt: str) -> str:
    """Two prompts with the same text here ask the same: case and white space aside."""
    return " ".join(prompt.casefold().split())


class HeldOut:
    """The held-out problems of a run, to be asked whether a training problem is one of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._known = {alike(problem.prompt) for problem in problems}

    def leaks(self, trained: Iterable[Problem]) -> list[Problem]:
        return [problem for problem in trained if alike(problem.prompt) in self._known]


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

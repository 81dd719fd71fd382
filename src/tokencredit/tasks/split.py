"""Train and held-out splits that cannot overlap: the prompt's text decides its split.

A question in both splits would test the policy on what it was trained on; `HeldOut` finds such questions.
"""

import zlib
from collections.abc import Callable, Iterable
from random import Random

from tokencredit.errors import ConfigError
from tokencredit.tasks.protocol import Problem, Split

HELD_OUT_ONE_IN = 10
PATIENCE = 20_000
"""Consecutive rejected problems (wrong split, or a repeated held-out one) after which the task counts as exhausted."""


def normalize_prompt(prompt: str) -> str:
    """The prompt without differences in case and white space: prompts that normalize to the same text are the same question."""
    return " ".join(prompt.casefold().split())


def split_of(prompt: str) -> Split:
    """Prompts that are the same question are in the same split."""
    return "held-out" if zlib.crc32(normalize_prompt(prompt).encode()) % HELD_OUT_ONE_IN == 0 else "train"


def draw_problems(
    make: Callable[[Random], Problem], count: int, *, split: Split, seed: int, patience: int = PATIENCE, hidden_answer: bool = False
) -> list[Problem]:
    """`count` problems of one split by rejection sampling, a pure function of the seed; held-out problems are distinct.

    `hidden_answer`: the prompt does not determine the answer, so one prompt with two answers is two problems.
    """
    rng = Random(f"{split}/{seed}")
    problems: list[Problem] = []
    seen: set[Problem | str] = set()
    rejected = 0
    while len(problems) < count:
        problem = make(rng)
        name = problem if hidden_answer else normalize_prompt(problem.prompt)
        if split_of(problem.prompt) != split or (split == "held-out" and name in seen):
            rejected += 1
            if rejected > patience:
                raise ConfigError(
                    f"task cannot supply {count} {split} problems: only {len(problems)} found; request fewer or raise the difficulty"
                )
            continue
        rejected = 0
        seen.add(name)
        problems.append(problem)
    return problems


class HeldOut:
    """The held-out problems of a run, to find training problems that are among them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._known = {normalize_prompt(problem.prompt) for problem in problems}

    def leaks(self, trained: Iterable[Problem]) -> list[Problem]:
        return [problem for problem in trained if normalize_prompt(problem.prompt) in self._known]

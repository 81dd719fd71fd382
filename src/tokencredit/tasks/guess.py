"""`guess`: find a secret number in a range within a few turns; after each wrong guess the environment replies higher or lower.

    23..36?   ->   29⏎    >?    32⏎    <?    30⏎          (the secret is 30; `>`: it is higher)

The policy writes the guesses, the environment writes the replies. The shipped base was trained mostly on players who ignore
the replies (`demonstrate`, `HASTY`). Only the replies tell the policy how to earn reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.tasks.protocol import Problem, Split
from tokencredit.tasks.split import draw_problems

ALPHABET = "0123456789.?<>!"
LOWER, HIGHER, MALFORMED = "<?", ">?", "!?"


class Range(NamedTuple):
    low: int
    high: int

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def after(self, guess: int, reply: str) -> "Range":
        """The numbers that remain possible after `reply` to `guess`."""
        return Range(self.low, min(self.high, guess - 1)) if reply == LOWER else Range(max(self.low, guess + 1), self.high)


def range_of(prompt: str) -> Range:
    """`23..36?` -> (23, 36), both included."""
    low, high = prompt.removesuffix("?").split("..")
    return Range(int(low), int(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Difficulty: the widest range (a range holds at least half as many numbers), the most guesses, and the largest number."""

    width: int = 15
    turns: int = 4
    largest: int = 99

    def __post_init__(self) -> None:
        if self.width > self.largest + 1:
            raise ConfigError(
                f"task.width is {self.width} but there are only {self.largest + 1} numbers up to task.largest; lower task.width"
            )

    def written(self, number: int) -> str:
        return f"{number:0{len(str(self.largest))}}"

    def make_problem(self, rng: Random) -> Problem:
        width = rng.randint(self.width // 2 + 1, self.width)
        low = rng.randint(0, self.largest + 1 - width)
        secret = rng.randrange(low, low + width)
        return Problem(prompt=f"{self.written(low)}..{self.written(low + width - 1)}?", answer=self.written(secret))

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return draw_problems(self.make_problem, count, split=split, seed=seed, hidden_answer=True)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        guess, secret = self._read(turns[-1]), int(problem.answer)
        if guess == secret or len(turns) >= self.turns:
            return None
        return MALFORMED if guess is None else LOWER if secret < guess else HIGHER

    def grade_turns(self, problem: Problem, turns: Sequence[str]) -> float:
        """1 if one of the first `turns` guesses is the secret."""
        return float(int(problem.answer) in map(self._read, turns[: self.turns]))

    def grade(self, problem: Problem, response: str) -> float:
        return self.grade_turns(problem, [response])

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return ["other" if self._read(response) is None else "guess"] * len(response)

    def demonstrate_turns(self, problem: Problem, *, seed: int) -> list[str]:
        """Binary search; it always wins in a range of at most 2^turns - 1 numbers."""
        left, turns = range_of(problem.prompt), list[str]()
        while True:
            turns.append(self.written(left.middle))
            reply = self.reply(problem, turns)
            if reply is None:
                return turns
            left = left.after(left.middle, reply)

    def _read(self, turn: str) -> int | None:
        """The guessed number; None where the turn is not a number."""
        return int(turn) if turn.isascii() and turn.isdigit() and len(turn) <= len(str(self.largest)) else None


class Style(NamedTuple):
    heeding_share: float
    """Share of conversations whose player uses the replies (binary search); the other players guess at random within the range."""


CAREFUL = Style(heeding_share=1.0)
HASTY = Style(heeding_share=0.25)


def demonstrate(task: Guess, problem: Problem, style: Style, rng: Random) -> tuple[str, ...]:
    """One conversation as texts: prompt, guess, reply, guess, ..."""
    if rng.random() < style.heeding_share:
        turns = task.demonstrate_turns(problem, seed=0)
    else:
        turns = list[str]()
        while not turns or task.reply(problem, turns) is not None:
            turns.append(task.written(rng.randint(*range_of(problem.prompt))))
    texts = [problem.prompt]
    for count, turn in enumerate(turns, 1):
        texts += [turn, task.reply(problem, turns[:count]) or ""]
    return tuple(texts[:-1])

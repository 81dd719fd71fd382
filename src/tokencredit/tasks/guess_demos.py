"""Demonstrations for `guess`: players who halve what is left of the range, and players who guess anywhere in it whatever they hear."""

from random import Random
from typing import NamedTuple

from tokencredit.tasks.guess import Guess, range_of
from tokencredit.tasks.protocol import Problem


class Style(NamedTuple):
    heeding_share: float
    """Share of conversations whose player heeds what it hears."""


CAREFUL = Style(heeding_share=1.0)
HASTY = Style(heeding_share=0.25)


def demonstrate(task: Guess, problem: Problem, style: Style, rng: Random) -> tuple[str, ...]:
    """Prompt, guess, reply, guess ... of one conversation."""
    if rng.random() < style.heeding_share:
        turns = task.demonstrate_turns(problem, seed=0)
    else:
        turns = list[str]()
        while not turns or task.reply(problem, turns) is not None:
            turns.append(task.written(rng.randint(*range_of(problem.prompt))))
    said = [problem.prompt]
    for count, turn in enumerate(turns, 1):
        said += [turn, task.reply(problem, turns[:count]) or ""]
    return tuple(said[:-1])

"""Does a task suit reinforcement learning from a verifier, for this policy? In words, from what was measured."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from tokencredit.analysis.measure import Measured
from tokencredit.config import Frozen

GOOD, SLOW = 0.3, 0.1
"""Shares of groups that teach something, from which on training goes well, and below which it hardly goes at all."""
OFTEN = 0.2
"""Share of problems with the same gold answer, from which on giving it always is what training finds first."""
SEEN = 5
"""Problems that must have it."""
FEW_ANSWERS = 10
"""Different gold answers, up to which a guess is often right: yes or no, A to D, a digit."""


class Verdict(NamedTuple):
    kind: Literal["good", "slow", "too hard", "too easy"]
    words: tuple[str, ...]


class Ladder(NamedTuple):
    """A dial of a task and its values from easier to harder."""

    field: str
    values: tuple[Any, ...]

    def beside(self, value: Any) -> tuple[Any, Any]:
        """The next easier and the next harder value; None where there is none."""
        if value in self.values:
            at = self.values.index(value)
            return (self.values[at - 1] if at else None), (self.values[at + 1] if at + 1 < len(self.values) else None)
        # The ladder may lead downwards: a larger share of something may be easier.
        rising = len(self.values) < 2 or self.values[0] < self.values[-1]
        easier = [step for step in self.values if (step < value) == rising]
        harder = [step for step in self.values if (step > value) == rising]
        return (easier[-1] if easier else None), (harder[0] if harder else None)


def ladder_of(task: Frozen) -> Ladder | None:
    found = getattr(type(task), "ladder", None)
    return None if found is None else Ladder(*found)


def judge(measured: Measured, task: Frozen) -> Verdict:
    mixed, right = measured.mixed, measured.pass_at[1]
    if mixed.value >= GOOD:
        kind, said = "good", "the task suits this model: enough groups hold both better and worse responses"
    elif mixed.value >= SLOW:
        kind, said = "slow", "training would be slow: few groups hold both better and worse responses"
    elif right.value < 0.5:
        kind, said = "too hard", "the task is too hard for this model: hardly any group holds a better and a worse response"
    else:
        kind, said = "too easy", "the task is too easy for this model: hardly any group holds a better and a worse response"
    words = [f"{said} ({_percent(mixed.value)} of groups of {measured.group_size})"]
    if any(mixed.low < edge <= mixed.value or mixed.value < edge <= mixed.high for edge in (GOOD, SLOW)):
        words.append(
            f"that is not sure: the share may be anywhere from {_percent(mixed.low)} to {_percent(mixed.high)}; ask more --problems"
        )
    words += [line for line in (_guessing(measured), _ungraded(measured), _cut(measured)) if line is not None]
    if kind != "good" and (advice := _advice(measured, task)) is not None:
        words.append(advice)
    return Verdict(kind, tuple(words))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _guessing(measured: Measured) -> str | None:
    right = measured.pass_at[1]
    if measured.answers > FEW_ANSWERS or measured.answers == measured.problems:
        return _easy_way_out(measured) if _tempting(measured) else None
    told = f"{measured.answers} different gold answers, the most frequent one in {_percent(measured.commonest)} of problems"
    if measured.answers == 1:
        return "there is only one gold answer: whoever always gives it is always right"
    # Far below chance it does not even guess.
    if right.value <= measured.commonest and right.high >= 1 / measured.answers:
        return f"it looks like guessing: there are {told}, and samples are right no more often than always giving that one would be"
    if measured.answers == 2:
        return f"a right answer may be a lucky guess: there are {told}; groups differ by chance too"
    return _easy_way_out(measured) if _tempting(measured) else None


def _tempting(measured: Measured) -> bool:
    """Seen often enough to be no accident of few problems."""
    return measured.pass_at[1].value < measured.commonest >= OFTEN and measured.commonest * measured.problems >= SEEN


def _easy_way_out(measured: Measured) -> str:
    return (
        f"always giving the most frequent answer would be right in {_percent(measured.commonest)} of problems, more often than "
        "samples are: training may teach just that"
    )


def _ungraded(measured: Measured) -> str | None:
    if not measured.ungraded:
        return None
    why = max(measured.reasons.items(), key=lambda item: item[1])[0]
    return f"{_percent(measured.ungraded)} of responses could not be graded and count as wrong, most often because: {why}"


def _cut(measured: Measured) -> str | None:
    if measured.cut <= 0.2:
        return None
    return (
        f"{_percent(measured.cut)} of responses are cut at the length limit; a larger sampling.max_new_tokens may make more of them right"
    )


def _advice(measured: Measured, task: Frozen) -> str | None:
    """Which neighbour on the ladder to try: an easier one where fewer than half of the samples are right."""
    if (ladder := ladder_of(task)) is None:
        return None
    value = getattr(task, ladder.field)
    easier, harder = ladder.beside(value)
    wanted, word = (easier, "easier") if measured.pass_at[1].value < 0.5 else (harder, "harder")
    if wanted is None:
        return f"nothing {word} than task.{ladder.field}={value} is on the task's ladder"
    return f"try {word} problems: task.{ladder.field}={wanted} (it is {value})"


def best_of(found: Sequence[Measured]) -> int | None:
    """The setting with most groups that teach something; None where no setting has any."""
    best = max(range(len(found)), key=lambda index: found[index].mixed.value)
    return best if found[best].mixed.value > 0 else None

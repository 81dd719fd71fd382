"""Judge from measurements whether reinforcement learning on a task can work for this policy, and give advice in sentences."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from tokencredit.analysis.measure import Measured
from tokencredit.config import Frozen

GOOD, SLOW = 0.3, 0.1
"""Shares of mixed groups: from GOOD on training works well, below SLOW it hardly works at all."""
OFTEN = 0.2
"""From this share of problems with the same gold answer on, training may first learn to always give that answer."""
SEEN = 5
"""Problems that must have that answer, so that a small sample does not trigger the warning by chance."""
FEW_ANSWERS = 10
"""Up to this number of distinct gold answers a guess is often right: yes or no, A to D, a digit."""


class Verdict(NamedTuple):
    kind: Literal["good", "slow", "too hard", "too easy"]
    lines: tuple[str, ...]


class Ladder(NamedTuple):
    """A difficulty field of a task and its values from easier to harder."""

    field: str
    values: tuple[Any, ...]

    def neighbors(self, value: Any) -> tuple[Any, Any]:
        """The next easier and the next harder value; None where there is none."""
        if value in self.values:
            at = self.values.index(value)
            return (self.values[at - 1] if at else None), (self.values[at + 1] if at + 1 < len(self.values) else None)
        # The values may fall: a larger share of something may be easier.
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
        kind, summary = "good", "the task suits this model: enough groups have both better and worse responses"
    elif mixed.value >= SLOW:
        kind, summary = "slow", "training would be slow: few groups have both better and worse responses"
    elif right.value < 0.5:
        kind, summary = "too hard", "the task is too hard for this model: hardly any group has both better and worse responses"
    else:
        kind, summary = "too easy", "the task is too easy for this model: hardly any group has both better and worse responses"
    lines = [f"{summary} ({_percent(mixed.value)} of groups of {measured.group_size})"]
    if any(mixed.low < edge <= mixed.value or mixed.value < edge <= mixed.high for edge in (GOOD, SLOW)):
        lines.append(
            f"this is uncertain: the share may be anywhere from {_percent(mixed.low)} to {_percent(mixed.high)}; give more --problems"
        )
    lines += [line for line in (_guessing(measured), _ungraded(measured), _cut(measured)) if line is not None]
    if kind != "good" and (advice := _advice(measured, task)) is not None:
        lines.append(advice)
    return Verdict(kind, tuple(lines))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _guessing(measured: Measured) -> str | None:
    right = measured.pass_at[1]
    if measured.answers > FEW_ANSWERS or measured.answers == measured.problems:
        return _shortcut(measured) if _has_shortcut(measured) else None
    counts = f"{measured.answers} different gold answers, the most frequent one in {_percent(measured.commonest)} of problems"
    if measured.answers == 1:
        return "there is only one gold answer: a policy that always gives it is always right"
    # Accuracy far below chance is not guessing.
    if right.value <= measured.commonest and right.high >= 1 / measured.answers:
        return (
            f"the policy looks like guessing: there are {counts}, and samples are right no more often than always giving that one would be"
        )
    if measured.answers == 2:
        return f"a right answer may be a lucky guess: there are {counts}; scores within a group also differ by chance"
    return _shortcut(measured) if _has_shortcut(measured) else None


def _has_shortcut(measured: Measured) -> bool:
    """Whether always giving the most frequent answer beats the samples, on enough problems not to be chance."""
    return measured.pass_at[1].value < measured.commonest >= OFTEN and measured.commonest * measured.problems >= SEEN


def _shortcut(measured: Measured) -> str:
    return (
        f"always giving the most frequent answer would be right in {_percent(measured.commonest)} of problems, more often than "
        "samples are: training may teach only that"
    )


def _ungraded(measured: Measured) -> str | None:
    if not measured.ungraded:
        return None
    why = max(measured.reasons.items(), key=lambda item: item[1])[0]
    return f"{_percent(measured.ungraded)} of responses could not be graded and count as wrong, most often because: {why}"


def _cut(measured: Measured) -> str | None:
    if measured.cut <= 0.2:
        return None
    return f"{_percent(measured.cut)} of responses are cut off at the length limit; raise sampling.max_new_tokens, and more may be right"


def _advice(measured: Measured, task: Frozen) -> str | None:
    """Advise the next value on the ladder: an easier one where fewer than half of the samples are right, else a harder one."""
    if (ladder := ladder_of(task)) is None:
        return None
    value = getattr(task, ladder.field)
    easier, harder = ladder.neighbors(value)
    wanted, word = (easier, "easier") if measured.pass_at[1].value < 0.5 else (harder, "harder")
    if wanted is None:
        return f"the task's ladder has no {word} value than task.{ladder.field}={value}"
    return f"try {word} problems: task.{ladder.field}={wanted} (now {value})"


def best_of(found: Sequence[Measured]) -> int | None:
    """The index of the setting with the largest share of mixed groups; None where no setting has any."""
    best = max(range(len(found)), key=lambda index: found[index].mixed.value)
    return best if found[best].mixed.value > 0 else None

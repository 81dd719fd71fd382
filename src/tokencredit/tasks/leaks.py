"""Questions that stand on both sides: a policy would be tested on what it was trained on."""

from collections.abc import Iterable

from tokencredit.tasks.protocol import Problem


def alike(prompt: str) -> str:
    """Two prompts with the same text here ask the same: case and white space aside."""
    return " ".join(prompt.casefold().split())


class HeldOut:
    """The held-out problems of a run, to be asked whether a training problem is one of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._known = {alike(problem.prompt) for problem in problems}

    def leaks(self, trained: Iterable[Problem]) -> list[Problem]:
        return [problem for problem in trained if alike(problem.prompt) in self._known]

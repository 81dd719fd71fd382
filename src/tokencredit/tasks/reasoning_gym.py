"""`reasoning-gym`: problems that the package of that name makes up, and scores in child processes under limits.

Which datasets of reasoning-gym are asked, how often, and with which parameters: checked before anything is made.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from tokencredit.config.messages import first_line, shortened
from tokencredit.errors import ConfigError
from tokencredit.grade.graders import compiled
from tokencredit.grade.gym_entries import (
    CHUNK,
    SET_BY_THE_RUN,
    GymGold,
    checksum,
    fitted,
    known_datasets,
    make_dataset,
    make_entry,
    settings_of,
)
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import GradeLimits, Verdict
from tokencredit.tasks.protocol import GoldReport, Problem, Split
from tokencredit.tasks.split import draw_problems
from tokencredit.text import suggest

NO_ANSWER = "it gives no answer of its own, so that nobody can tell whether its scorer works"
BY_HASH = "its problems or answers change with Python's hash seed: a resumed run would be asked something else"

UNSUITED: dict[str, str] = {
    "composite": "task.mixture does what it is for",
    "codeio": "it makes problems by running stored programs that nobody has read, in the process that trains",
    "boxnet": NO_ANSWER,
    "graph_color": NO_ANSWER,
    "propositional_logic": NO_ANSWER,
    "rubiks_cube": NO_ANSWER,
    "rush_hour": NO_ANSWER,
    "intermediate_integration": BY_HASH,
    "isomorphic_strings": BY_HASH,
    "knight_swap": BY_HASH,
    "polynomial_multiplication": BY_HASH,
    "ransom_note": BY_HASH,
    "word_ladder": BY_HASH,
    "coin_flip": "its scorer takes 0 for right whenever the answer begins with 0",
    "game_of_life_halting": "its scorer takes any text for right",
    "puzzle24": "its scorer takes an expression over other numbers than the given ones for right",
}
"""Dataset -> why it is refused, as of reasoning-gym 0.1.25 (`python -m tokencredit.lab.studies.reliability golds` finds out)."""


class Share(NamedTuple):
    """A dataset and how often it is asked, relative to the others."""

    weight: float
    parameters: dict[str, Any]


def shares(dataset: str | None, mixture: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Share]:
    """Name -> share; of a single dataset too."""
    if (dataset is None) == (not mixture):
        said = "neither is set" if dataset is None else "both are set"
        raise ConfigError(f"task.dataset and task.mixture: {said}; task 'reasoning-gym' needs one of them, such as dataset letter_counting")
    if dataset is not None:
        return {dataset: Share(1.0, _checked("task.dataset", dataset, "task.parameters", parameters))}
    for name, weight in mixture.items():
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < float("inf"):
            raise ConfigError(f"task.mixture.{name} is {shortened(weight)}; give a number above 0")
    for name in parameters:
        if name not in mixture:
            raise ConfigError(f"task.parameters.{name} is for no dataset of task.mixture; {suggest(name[:60], mixture)}")
    found = {}
    for name, weight in mixture.items():
        given = parameters.get(name, {})
        if not isinstance(given, dict):
            raise ConfigError(f"task.parameters.{name} is {shortened(given)}; give a table: [task.parameters.{name}]")
        found[name] = Share(float(weight), _checked("task.mixture", name, f"task.parameters.{name}", given))
    return found


def _checked(field: str, name: str, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, if the dataset is there, is suited and takes them."""
    if name not in known_datasets():
        raise ConfigError(f"{field} {shortened(name)} is not a dataset of reasoning-gym; {suggest(name[:60], known_datasets())}")
    if name in UNSUITED:
        raise ConfigError(f"{field} {name!r} is refused: {UNSUITED[name]}; choose another")
    defaults = settings_of(name)
    for key, value in given.items():
        if key in SET_BY_THE_RUN:
            raise ConfigError(f"{where}.{key} follows from the run; leave it out")
        if key not in defaults:
            raise ConfigError(f"{where}.{key[:60]} is not a setting of {name!r}; {suggest(key[:60], defaults)}")
        try:
            fitted(defaults[key], value)
        except (ValueError, TypeError) as problem:
            raise ConfigError(f"{where}.{key} is {shortened(value)}; {first_line(problem)}") from None
    try:
        make_dataset(name, given, 0)
    except Exception as problem:  # its checks are assertions, and what they do not see may break anywhere
        said = first_line(problem) if str(problem) else "no reason is given"
        named = [key for key in defaults if re.search(rf"\b{key}\b", said)] or list(given)
        fields = ", ".join(f"{where}.{key} = {shortened(given.get(key, defaults[key]))}" for key in named) or where
        raise ConfigError(f"{fields}: reasoning-gym's {name} does not take this: {said}") from None
    return dict(given)


CHECKED = 64
"""Gold answers graded at the start."""
PATIENCE = 500
"""Making a problem may take a tenth of a second, so little time is spent on looking for one that is not there."""


class ReasoningGym:
    """Which entry is asked stands in a problem's `answer`; the entry itself is made again by whoever scores it."""

    def __init__(
        self,
        *,
        dataset: str | None,
        parameters: Mapping[str, Any] | None = None,
        mixture: Mapping[str, Any] | None = None,
        template: str = "{question}\n",
        answer_pattern: str | None = None,
        threshold: float = 0.9999,
        partial_credit: bool = False,
        deadline: float = 5.0,
        memory: int = 1024,
        workers: int = 2,
    ) -> None:
        if "{question}" not in template:
            raise ConfigError(f"task.template is {template!r}; it must hold {{question}}, where the question goes")
        if answer_pattern is not None:
            compiled(answer_pattern, "task.answer_pattern")
        self._shares = shares(dataset, mixture or {}, parameters or {})
        self._template, self._scores_whole_response = template, answer_pattern is None
        self._left_out: set[tuple[str, int]] = set()
        self._pool = GraderPool(
            grader="reasoning-gym",
            knobs={
                "parameters": {name: share.parameters for name, share in self._shares.items()},
                "answer_pattern": answer_pattern,
                "threshold": threshold,
                "partial_credit": partial_credit,
            },
            limits=GradeLimits(seconds=deadline, memory_mib=memory),
            workers=workers,
        )

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return draw_problems(Drawing(self._shares, self._template, self._left_out), count, split=split, seed=seed, patience=PATIENCE)

    def grade_all(self, asked: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        return self._pool.grade([(problem.answer, response) for problem, response in asked])

    def grade(self, problem: Problem, response: str) -> float:
        return self.grade_all([(problem, response)])[0].score

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return ["response"] * len(response)

    def gold_answer(self, problem: Problem) -> str:
        return GymGold.loads(problem.answer).answer

    def demonstrate(self, problem: Problem, *, seed: int) -> str:
        """The answer alone: right unless task.answer_pattern asks for something around it."""
        return self.gold_answer(problem)

    def check_gold(self) -> GoldReport:
        """A sample: problems are made up as they are asked. From a pattern no response can be made up, so then nothing is checked."""
        if not self._scores_whole_response:
            return GoldReport(checked=0, failed=())
        draw, rng = Drawing(self._shares, self._template, self._left_out), Random("gold")
        asked = [draw(rng) for _ in range(CHECKED)]
        found = self.grade_all([(problem, self.demonstrate(problem, seed=0)) for problem in asked])
        golds = [GymGold.loads(problem.answer) for problem in asked]
        failed = tuple(
            (gold.number, _why(gold, verdict)) for gold, verdict in zip(golds, found, strict=True) if verdict.score < 1.0 or verdict.reason
        )
        if len(failed) == CHECKED:
            raise ConfigError(f"none of {CHECKED} gold answers is graded right, {failed[0][1]}; see task.parameters and task.threshold")
        self.leave_out(failed)
        return GoldReport(checked=CHECKED, failed=failed)

    def leave_out(self, failed: Sequence[tuple[int, str]]) -> None:
        self._left_out |= {(reason.partition(":")[0], number) for number, reason in failed}


class Drawing:
    """The next problem, from numbers that follow each other: a new seed is drawn where the entries of one are used up."""

    def __init__(self, shares: Mapping[str, Share], template: str, left_out: set[tuple[str, int]]) -> None:
        self._shares, self._template, self._left_out = shares, template, left_out
        self._next: dict[str, int] = {}

    def __call__(self, rng: Random) -> Problem:
        names = list(self._shares)
        while True:
            name = rng.choices(names, [share.weight for share in self._shares.values()])[0]
            number = self._next.get(name, 0)
            if number % CHUNK == 0:
                number = rng.randrange(1, 2**30) * CHUNK
            self._next[name] = number + 1
            if (name, number) not in self._left_out:
                return self._problem(name, number)

    def _problem(self, name: str, number: int) -> Problem:
        try:
            made = make_entry(name, self._shares[name].parameters, number).made
        except Exception as problem:  # parameters that its own checks let through
            raise ConfigError(
                f"task.parameters: reasoning-gym's {name} cannot make a problem with {shortened(self._shares[name].parameters)}: "
                f"{type(problem).__name__}: {first_line(problem)}"
            ) from None
        question, answer = made["question"], made["answer"]
        if not isinstance(question, str) or not isinstance(answer, str):
            raise ConfigError(f"reasoning-gym's {name} gives {shortened(answer)} for an answer, which is no text; choose another dataset")
        gold = GymGold(name, number, checksum(question), answer)
        # Not str.format: a question may hold braces.
        return Problem(prompt=self._template.replace("{question}", question), answer=gold.dumps())


def _why(gold: GymGold, verdict: Verdict) -> str:
    return f"{gold.dataset}: {verdict.reason or f'its own answer {shortened(gold.answer)} is graded {verdict.score:g}'}"

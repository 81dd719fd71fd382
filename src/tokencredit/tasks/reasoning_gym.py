"""`reasoning-gym`: problems that the package reasoning-gym generates, and that child processes score under limits.

Datasets, their shares and their parameters are checked before any problem is generated.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from tokencredit.config.messages import first_line, shortened
from tokencredit.config.task import ReasoningGymTask
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

NO_ANSWER = "it has no gold answers, so its scorer cannot be checked"
BY_HASH = "its problems or answers depend on Python's hash seed, so a resumed run would get other problems"

UNSUITED: dict[str, str] = {
    "composite": "task.mixture replaces it",
    "codeio": "it generates problems by running stored, unreviewed programs in the training process",
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
    "coin_flip": "its scorer accepts 0 whenever the answer begins with 0",
    "game_of_life_halting": "its scorer accepts any text",
    "puzzle24": "its scorer accepts expressions over numbers other than the given ones",
}
"""Dataset -> why the task refuses it, as of reasoning-gym 0.1.25 (`python -m tokencredit.lab.studies.reliability golds` finds them)."""
CHECKED = 64
"""Gold answers graded at the start."""
PATIENCE = 500
"""As `split.PATIENCE`, but lower: making one problem may take a tenth of a second."""


class Share(NamedTuple):
    """A dataset's sampling weight, relative to the other datasets, and its parameters."""

    weight: float
    parameters: dict[str, Any]


def shares(dataset: str | None, mixture: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Share]:
    """Dataset name -> share; a single dataset gives one entry."""
    if (dataset is None) == (not mixture):
        given = "neither is set" if dataset is None else "both are set"
        raise ConfigError(
            f"task.dataset and task.mixture: {given}; task 'reasoning-gym' needs one of them, such as dataset letter_counting"
        )
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
    """The parameters, or a ConfigError where the dataset is unknown, unsuited or does not take them."""
    if name not in known_datasets():
        raise ConfigError(f"{field} {shortened(name)} is not a dataset of reasoning-gym; {suggest(name[:60], known_datasets())}")
    if name in UNSUITED:
        raise ConfigError(f"{field} {name!r} is refused: {UNSUITED[name]}; choose another")
    defaults = settings_of(name)
    for key, value in given.items():
        if key in SET_BY_THE_RUN:
            raise ConfigError(f"{where}.{key} is set by the run; remove it")
        if key not in defaults:
            raise ConfigError(f"{where}.{key[:60]} is not a setting of {name!r}; {suggest(key[:60], defaults)}")
        try:
            fitted(defaults[key], value)
        except (ValueError, TypeError) as problem:
            raise ConfigError(f"{where}.{key} is {shortened(value)}; {first_line(problem)}") from None
    try:
        make_dataset(name, given, 0)
    except Exception as problem:  # The package checks with assertions, and values that pass them may raise anything anywhere.
        reason = first_line(problem) if str(problem) else "no reason is given"
        named = [key for key in defaults if re.search(rf"\b{key}\b", reason)] or list(given)
        fields = ", ".join(f"{where}.{key} = {shortened(given.get(key, defaults[key]))}" for key in named) or where
        raise ConfigError(f"{fields}: reasoning-gym's {name} does not take this: {reason}") from None
    return dict(given)


class ReasoningGym:
    """A problem's `answer` names its entry (`GymGold`); the grading process generates the entry again from it."""

    def __init__(self, options: ReasoningGymTask) -> None:
        if "{question}" not in options.template:
            raise ConfigError(f"task.template is {options.template!r}; it must hold {{question}}, which the question replaces")
        if options.answer_pattern is not None:
            compiled(options.answer_pattern, "task.answer_pattern")
        self._shares = shares(options.dataset, options.mixture, options.parameters)
        self._template, self._scores_whole_response = options.template, options.answer_pattern is None
        self._left_out: set[tuple[str, int]] = set()
        self._pool = GraderPool(
            grader="reasoning-gym",
            knobs={
                "parameters": {name: share.parameters for name, share in self._shares.items()},
                "answer_pattern": options.answer_pattern,
                "threshold": options.threshold,
                "partial_credit": options.partial_credit,
            },
            limits=GradeLimits(seconds=options.deadline, memory_mib=options.memory),
            workers=options.workers,
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
        """The gold answer alone: right unless task.answer_pattern requires text around it."""
        return self.gold_answer(problem)

    def check_gold(self) -> GoldReport:
        """Check a sample of `CHECKED` gold answers: problems are generated without end.

        With task.answer_pattern nothing is checked: a pattern alone does not tell what a matching response looks like.
        """
        if not self._scores_whole_response:
            return GoldReport(checked=0, failed=())
        draw, rng = Drawing(self._shares, self._template, self._left_out), Random("gold")
        problems = [draw(rng) for _ in range(CHECKED)]
        found = self.grade_all([(problem, self.demonstrate(problem, seed=0)) for problem in problems])
        golds = [GymGold.loads(problem.answer) for problem in problems]
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
    """Draws problems with consecutive entry numbers; when the entries of one seed are used up, it draws a new seed."""

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
        except Exception as problem:  # Parameters may pass the package's own checks and still fail here.
            raise ConfigError(
                f"task.parameters: reasoning-gym's {name} cannot make a problem with {shortened(self._shares[name].parameters)}: "
                f"{type(problem).__name__}: {first_line(problem)}"
            ) from None
        question, answer = made["question"], made["answer"]
        if not isinstance(question, str) or not isinstance(answer, str):
            raise ConfigError(f"reasoning-gym's {name} gives the answer {shortened(answer)}, which is not text; choose another dataset")
        gold = GymGold(name, number, checksum(question), answer)
        # Not str.format: a question may contain braces.
        return Problem(prompt=self._template.replace("{question}", question), answer=gold.dumps())


def _why(gold: GymGold, verdict: Verdict) -> str:
    return f"{gold.dataset}: {verdict.reason or f'its own answer {shortened(gold.answer)} is graded {verdict.score:g}'}"

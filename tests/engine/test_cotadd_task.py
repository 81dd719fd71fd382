"""The `cotadd` task: sums graded after the scratchpad, demonstrations that forget carries, splits that cannot overlap."""

from random import Random

import pytest

from tokencredit.tasks import CotAdd, Problem
from tokencredit.tasks.cotadd import CAREFUL, HASTY, Style, add_forgetting, demonstrate

TASK = CotAdd()
PROBLEM = Problem(prompt="1234+5678=", answer="06912")


@pytest.mark.parametrize(
    ("response", "score"),
    [("06912", 1.0), ("r21960;06912", 1.0), ("r99999;06912", 1.0), ("6912", 0.0), ("r21960;", 0.0), ("r06912", 0.0), ("", 0.0)],
)
def test_what_follows_the_last_semicolon_is_the_answer(response: str, score: float) -> None:
    assert TASK.grade(PROBLEM, response) == score


def test_classes_tell_the_scratchpad_from_the_answer() -> None:
    assert TASK.token_class(PROBLEM, "r219;06") == ["preamble", "scratch", "scratch", "scratch", "separator", "answer", "answer"]
    assert TASK.token_class(PROBLEM, "06912") == ["answer"] * 5


def test_problems_are_sums_and_splits_are_disjoint() -> None:
    train = TASK.problems(500, split="train", seed=0)
    for problem in train:
        left, right = problem.prompt.removesuffix("=").split("+")
        assert int(left) + int(right) == int(problem.answer)
    assert not {problem.prompt for problem in train} & {problem.prompt for problem in TASK.problems(500, split="held-out", seed=0)}


def test_carries_are_forgotten_as_often_as_asked() -> None:
    assert add_forgetting("1234", "5678", 0.0, Random(0)) == "06912"
    assert add_forgetting("1234", "5678", 1.0, Random(0)) == "06802"
    assert add_forgetting("9999", "9999", 1.0, Random(0)) == "08888"


@pytest.mark.parametrize(("style", "right", "scratch"), [(CAREFUL, 1.0, 1.0), (HASTY, 0.32, 0.25)])
def test_styles_differ_in_care_and_in_scratchpads(style: Style, right: float, scratch: float) -> None:
    rng = Random(0)
    problems = TASK.problems(1500, split="train", seed=2)
    responses = [demonstrate(problem, style, rng) for problem in problems]
    graded = [TASK.grade(problem, response) for problem, response in zip(problems, responses, strict=True)]
    assert sum(graded) / 1500 == pytest.approx(right, abs=0.06)
    assert sum(response.startswith("r") for response in responses) / 1500 == pytest.approx(scratch, abs=0.04)

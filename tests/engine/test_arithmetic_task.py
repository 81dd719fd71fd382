"""`arithmetic`: terms of the asked length, answers that stand alone, splits that cannot overlap."""

import pytest

from tokencredit.config.base import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.tasks import TASKS, Arithmetic, HasDemonstrations, Problem
from tokencredit.tasks.split import split_of

OPERATIONS = {"+": lambda one, two: one + two, "-": lambda one, two: one - two, "*": lambda one, two: one * two}


@pytest.mark.parametrize("operator", OPERATIONS)
@pytest.mark.parametrize("digits", [1, 2, 9])
def test_terms_have_the_asked_length_and_the_answer_is_right(operator: str, digits: int) -> None:
    task = Arithmetic(digits=digits, operator=operator)
    for problem in task.problems(200, split="train", seed=1):
        left, written, right, equals = problem.prompt.split(" ")
        assert (written, equals) == (operator, "=")
        assert len(left) == len(right) == digits
        assert problem.answer == str(OPERATIONS[operator](int(left), int(right)))
        assert task.grade(problem, task.demonstrate(problem, seed=0)) == 1.0


def test_every_pair_of_terms_comes_up_on_its_own_side() -> None:
    pairs = {f"{left} + {right} =" for left in range(10) for right in range(10)}
    held_out = {prompt for prompt in pairs if split_of(prompt) == "held-out"}
    task = Arithmetic(digits=1)
    assert {problem.prompt for problem in task.problems(3000, split="train", seed=0)} == pairs - held_out
    assert {problem.prompt for problem in task.problems(len(held_out), split="held-out", seed=0)} == held_out


PROBLEM = Problem(prompt="12 + 34 =", answer="46")


@pytest.mark.parametrize("response", ["46", " 46 ", "46\n", "46\n12+35=47", "\t46\r\nand so on"])
def test_the_first_line_is_the_answer(response: str) -> None:
    assert Arithmetic().grade(PROBLEM, response) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "",
        "\n46",
        "46.",
        "46.0",
        "+46",
        "046",
        "4 6",
        "46 46",
        "=46",
        "460",
        "it is 46",
        "45\n46",
        "\u0664\u0666",
        "46" * 5000,
        "4_6",
        "46\x00",
    ],
)
def test_anything_else_is_wrong(response: str) -> None:
    assert Arithmetic().grade(PROBLEM, response) == 0.0


def test_a_difference_may_be_negative() -> None:
    problem = Problem(prompt="12 - 34 =", answer="-22")
    assert [Arithmetic(operator="-").grade(problem, text) for text in ("-22", "- 22", "\N{MINUS SIGN}22", "22")] == [1.0, 0.0, 0.0, 0.0]


def test_problems_follow_from_the_seed_and_splits_are_disjoint() -> None:
    task = Arithmetic()
    assert task.problems(50, split="train", seed=3) == task.problems(50, split="train", seed=3)
    assert task.problems(50, split="train", seed=3) != task.problems(50, split="train", seed=4)
    held_out = [problem.prompt for problem in task.problems(600, split="held-out", seed=0)]
    assert len(set(held_out)) == 600
    assert not set(held_out) & {problem.prompt for seed in range(5) for problem in task.problems(1000, split="train", seed=seed)}


def test_too_few_problems_are_told() -> None:
    with pytest.raises(ConfigError, match=r"only [0-9]+ found; request fewer or raise the difficulty"):
        Arithmetic(digits=1).problems(50, split="held-out", seed=0)


def test_classes_cover_the_response() -> None:
    assert Arithmetic().token_class(PROBLEM, "46\nx") == ["answer", "answer", "other", "other"]
    assert Arithmetic().token_class(PROBLEM, "") == []


def test_dials_come_from_a_configuration() -> None:
    task = TASKS["arithmetic"](**as_kwargs(resolve([{"task": {"type": "arithmetic", "digits": 3, "operator": "*"}}]).task))
    assert task == Arithmetic(digits=3, operator="*")
    assert isinstance(task, HasDemonstrations)
    for wrong in ({"digits": 0}, {"digits": 10}, {"operator": "/"}):
        with pytest.raises(ConfigError, match=rf"task\.{next(iter(wrong))}"):
            resolve([{"task": {"type": "arithmetic"} | wrong}])
    with pytest.raises(ConfigError, match=r"task\.operator is '%'"):
        Arithmetic(operator="%")

"""The `steps` task: what the verifier sees, which step broke, what every character is, and that splits cannot overlap."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencredit.tasks import Problem, Steps
from tokencredit.tasks.split import split_of
from tokencredit.tasks.steps import NO_ERRORS, SHARPEN, SHIFT, apply, chain_of, demonstrate, demonstrate_revision, parse_steps

TASK = Steps()
PROBLEM = Problem(prompt="6+4-3-9-2=", answer="6")
RIGHT = "a:6+4=0;0-3=7,7-9=8;;8-2=6;#6"


def test_the_chain_is_worked_out_mod_ten() -> None:
    value, chain = chain_of(PROBLEM.prompt)
    for op, right in chain:
        value = apply(value, op, right)
    assert str(value) == PROBLEM.answer == "6"


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (RIGHT, 1.0),
        ("#6", 1.0),
        ("nonsense#6", 1.0),
        ("a:6+4=0;0-3=7,7-9=8;;8-2=6;#5", 0.0),
        (RIGHT + "6", 0.0),
        ("6", 0.0),
        ("", 0.0),
        ("#", 0.0),
    ],
)
def test_only_the_final_answer_is_verified(response: str, score: float) -> None:
    assert TASK.grade(PROBLEM, response) == score


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        (RIGHT, [True] * 4),
        ("a:6+4=1;1-3=8,8-9=9;;9-2=7;#7", [False, True, True, True]),
        ("a:6+4=0;0-3=3,3-9=4;;4-2=2;#2", [True, False, True, True]),
        ("a:6+4=0;0+3=3,3-9=4;;4-2=2;#2", [True, False, True, True]),
        ("a:6+5=1;1-3=8;", [False, True]),
        ("b:7+4=1;", [False]),
        ("rubbish", []),
    ],
)
def test_only_the_step_that_broke_the_chain_is_wrong(response: str, truth: list[bool]) -> None:
    assert TASK.step_truth(PROBLEM, response) == truth


def test_every_character_has_its_class() -> None:
    one_step = ["copy", "operator", "operand", "operator", "result"]
    expected = ["preamble"] * 2
    for separators in (1, 1, 2, 1):
        expected += one_step + ["separator"] * separators
    assert TASK.token_class(PROBLEM, RIGHT) == [*expected, "answer", "answer"]
    assert TASK.token_class(PROBLEM, "xy") == ["other", "other"]
    assert TASK.token_class(PROBLEM, "") == []


@given(st.text(alphabet="0123456789+-=:;,#ab?>", max_size=40))
def test_any_text_is_labelled_character_by_character(text: str) -> None:
    labels = TASK.token_class(PROBLEM, text)
    assert len(labels) == len(text)
    assert len(parse_steps(text)) == labels.count("result") or "#" in text
    assert TASK.grade(PROBLEM, text) in (0.0, 1.0)


def test_train_and_held_out_never_share_a_prompt() -> None:
    train = {problem.prompt for problem in TASK.problems(3000, split="train", seed=1)}
    held_out = [problem.prompt for problem in TASK.problems(1000, split="held-out", seed=1)]
    assert not train & set(held_out)
    assert len(set(held_out)) == len(held_out)
    assert all(split_of(prompt) == "held-out" for prompt in held_out)
    assert TASK.problems(20, split="train", seed=1) == TASK.problems(20, split="train", seed=1)
    assert TASK.problems(20, split="train", seed=1) != TASK.problems(20, split="train", seed=2)


def test_dials_set_length_and_share_of_subtractions() -> None:
    hard = Steps(operations=6, subtract_share=1.0).problems(50, split="train", seed=0)
    assert all(problem.prompt.count("-") == 6 and "+" not in problem.prompt for problem in hard)


def test_asking_for_more_distinct_problems_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot supply 500 held-out problems: only \d+ found"):
        Steps(operations=1).problems(500, split="held-out", seed=0)


@pytest.mark.parametrize(("rates", "low", "high"), [(NO_ERRORS, 1.0, 1.0), (SHARPEN, 0.3, 0.42), (SHIFT, 0.2, 0.32)])
def test_demonstrations_go_wrong_as_often_as_their_regime_says(rates: object, low: float, high: float) -> None:
    rng = Random(0)
    problems = TASK.problems(2000, split="train", seed=3)
    share = sum(TASK.grade(problem, demonstrate(problem, rates, rng)) for problem in problems) / len(problems)  # pyright: ignore[reportArgumentType]
    assert low <= share <= high


def test_a_revision_keeps_what_was_right_and_repairs_most_failures() -> None:
    rng = Random(0)
    repaired = 0
    for problem in TASK.problems(400, split="train", seed=4):
        prompt, response = demonstrate_revision(TASK, problem, SHIFT, rng)
        _, failed, sibling = prompt.removesuffix(">").split("?")
        assert prompt == TASK.revise(problem, failed, sibling)
        assert TASK.grade(problem, failed) == 0.0
        truth = TASK.step_truth(problem, failed)
        intact = truth.index(False) if False in truth else len(truth)
        kept = parse_steps(failed)[:intact]
        assert parse_steps(response)[:intact] == kept
        if kept:
            assert response.startswith(failed[: kept[-1].at + 1])
        repaired += int(TASK.grade(problem, response))
    assert 0.6 < repaired / 400 < 0.9

"""`countdown`: solvable problems, a verifier that reads expressions without running them, and every trick against it wrong."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokencredit.config.base import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.tasks import TASKS, Countdown, HasDemonstrations, Problem
from tokencredit.tasks.countdown import read_expression

TASK = Countdown()
PROBLEM = Problem(prompt="Make 21 from the numbers 1, 4, 7: ...", answer="7*(4-1)")


@pytest.mark.parametrize("numbers", [2, 3, 4, 5, 6])
def test_every_problem_is_solved_by_its_demonstration(numbers: int) -> None:
    task = Countdown(numbers=numbers, largest=25, target_largest=60)
    for problem in task.problems(60, split="train", seed=2):
        head = problem.prompt.partition(":")[0].removeprefix("Make ")
        target, given_numbers = head.split(" from the numbers ")
        shown = [int(number) for number in given_numbers.split(", ")]
        assert shown == sorted(shown)
        assert len(shown) == numbers
        assert 1 <= int(target) <= 60
        assert max(shown) <= 25
        written = task.demonstrate(problem, seed=0)
        found = read_expression(written)
        assert found is not None
        assert sorted(map(int, found.numbers)) == shown
        assert found.value == int(target)
        assert task.grade(problem, written) == task.grade(problem, f"Let me think.\n{written} = {target}\n") == 1.0


@pytest.mark.parametrize(
    "response", ["7*(4-1)", "(4-1)*7", " ( 4 - 1 ) * 7 ", "7*(4-1)=21", "7*(4-1) = 21\n\n", "1+1\n7*(4-1)", "((7))*(4-(1))"]
)
def test_any_solution_is_right(response: str) -> None:
    assert TASK.grade(PROBLEM, response) == 1.0


WRONG = {
    "nothing": "",
    "another value": "7*4-1",
    "another value claimed": "7*(4-1) = 22",
    "the claim in other words": "7*(4-1) = 21.0",
    "two claims": "7*(4-1) = 21 = 21",
    "a number left out": "7+4",
    "a number twice": "7*(4-1)+7-7",
    "a number that was not given": "7*3",
    "numbers run together": "21+14-14",
    "the target alone": "21",
    "the last line counts": "7*(4-1)\nI hope so.",
    "words around it": "it is 7*(4-1)",
    "a leading zero": "07*(4-1)",
    "a decimal": "7.0*(4-1)",
    "a sign": "7*(4+-1)",
    "a sign first": "-1*7*(1-4)",
    "a power": "7**(4-1)",
    "a tower of powers": "9**9**9**9",
    "a power in another way": "7^(4-1)",
    "whole division": "7//(4-1)",
    "division by zero": "7/(4-4)",
    "division by zero in a longer one": "7*(4-1)+0/0",
    "multiplication without a sign": "7(4-1)",
    "open": "7*(4-1",
    "closed too often": "7*(4-1))",
    "an empty pair": "7*(4-1)+()",
    "only operators": "+-*/",
    "an operator at the end": "7*(4-1)+",
    "other digits": "\u0667*(\u0664-\u0661)",
    "wide digits": "\uff17*(\uff14-\uff11)",
    "other operators": "7\u00d7(4\u22121)",
    "superscript": "7*(4-1)\u00b2",
    "a call": "__import__('os').system('touch hacked')",
    "a name": "seven*(4-1)",
    "an attribute": "(7).real*(4-1)",
    "a comparison": "7*(4-1)==21",
    "a condition": "21 if 7*4*1 else 0",
    "a comment": "7*(4-1)#",
    "NUL": "7*(4-1)\x00",
    "a group sign": "7_0*(4-1)",
    "ten thousand characters": "7*(4-1)" + "+1-1" * 2500,
    "deep": "(" * 5000 + "7*(4-1)" + ")" * 5000,
    "a long number": "9" * 10_000,
}


@pytest.mark.parametrize("trick", WRONG)
def test_tricks_are_wrong(trick: str) -> None:
    assert TASK.grade(PROBLEM, WRONG[trick]) == 0.0


def test_fractions_are_exact() -> None:
    """8/(3-8/3) is 24, which floats miss."""
    problem = Problem(prompt="Make 24 from the numbers 3, 3, 8, 8: ...", answer="8/(3-8/3)")
    assert TASK.grade(problem, "8/(3-8/3)") == 1.0
    assert TASK.grade(problem, "8*3*(8/8)-3+3") == 0.0
    third = read_expression("1/3+1/3+1/3")
    assert third is not None
    assert third.value == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2-3-4", -5),
        ("16/4/2", 2),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("2*3+4*5", 26),
        ("8-6/2*3+1", 0),
        ("((((5))))", 5),
        ("1/4", Fraction(1, 4)),
    ],
)
def test_operators_bind_as_everybody_expects(text: str, value: Fraction) -> None:
    found = read_expression(text)
    assert found is not None
    assert found.value == value


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner, st.booleans()).map(
        lambda parts: f"({parts[0]}{parts[1]}{parts[2]})" if parts[3] else f"{parts[0]}{parts[1]}{parts[2]}"
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_it_agrees_with_python_s_own_reading(text: str) -> None:
    """A twin for texts made here; leading zeros, which Python refuses, are not made."""
    named = "".join(f"Fraction({piece})" if piece.isdigit() else piece for piece in _pieces(text))
    try:
        expected = eval(named, {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    found = read_expression(text)
    assert (None if found is None else found.value) == expected


def _pieces(text: str) -> list[str]:
    return re.findall(r"\d+|\D", text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789+-*/() \n=", max_size=30))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert TASK.grade(PROBLEM, text) in (0.0, 1.0)
    assert len(TASK.token_class(PROBLEM, text)) == len(text)


def test_problems_follow_from_the_seed_and_splits_are_disjoint() -> None:
    assert TASK.problems(40, split="train", seed=3) == TASK.problems(40, split="train", seed=3)
    assert TASK.problems(40, split="train", seed=3) != TASK.problems(40, split="train", seed=4)
    held_out = [problem.prompt for problem in TASK.problems(300, split="held-out", seed=0)]
    assert len(set(held_out)) == 300
    assert not set(held_out) & {problem.prompt for seed in range(3) for problem in TASK.problems(1000, split="train", seed=seed)}


def test_classes_tell_numbers_operators_and_parentheses_apart() -> None:
    assert TASK.token_class(PROBLEM, "12*(4)=") == ["number", "number", "operator", "parenthesis", "number", "parenthesis", "other"]
    assert TASK.token_class(PROBLEM, "\u0664") == ["other"]


def test_dials_come_from_a_configuration() -> None:
    task = TASKS["countdown"](
        **as_kwargs(resolve([{"task": {"type": "countdown", "numbers": 4, "largest": 9, "target_largest": 24}}]).task)
    )
    assert task == Countdown(numbers=4, largest=9, target_largest=24)
    assert isinstance(task, HasDemonstrations)
    for wrong in ({"numbers": 1}, {"numbers": 7}, {"largest": 0}, {"target_largest": 0}):
        with pytest.raises(ConfigError, match=rf"task\.{next(iter(wrong))}"):
            resolve([{"task": {"type": "countdown"} | wrong}])


def test_a_target_out_of_reach_is_told() -> None:
    with pytest.raises(ConfigError, match=r"task\.target_largest is 1, which 3 numbers up to task\.largest 1 do not reach"):
        Countdown(numbers=3, largest=1, target_largest=1).make_problem(_Sums())


class _Sums:
    """Draws like a generator that knows addition alone."""

    def randint(self, low: int, high: int) -> int:
        return high

    def randrange(self, stop: int) -> int:
        return 0

    def choice(self, options: str) -> str:
        return "+"

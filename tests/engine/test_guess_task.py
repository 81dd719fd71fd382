"""The `guess` environment: pure, consistent, silent about the secret, and always beaten by halving."""

from random import Random

import pytest

from tokencredit.errors import ConfigError
from tokencredit.tasks import DemonstratingTurns, Guess, MultiTurn, Problem
from tokencredit.tasks.guess import ALPHABET, CAREFUL, HASTY, HIGHER, LOWER, MALFORMED, Style, demonstrate, range_of

TASK = Guess()
PROBLEM = Problem(prompt="23..36?", answer="30")


@pytest.mark.parametrize(
    ("turns", "reply", "score"),
    [
        (["29"], HIGHER, 0.0),
        (["31"], LOWER, 0.0),
        (["30"], None, 1.0),
        (["29", "99"], LOWER, 0.0),
        (["3x"], MALFORMED, 0.0),
        ([""], MALFORMED, 0.0),
        (["030"], MALFORMED, 0.0),
        (["٣٠"], MALFORMED, 0.0),
        (["29", "31", "28", "30"], None, 1.0),
        (["29", "31", "28", "32"], None, 0.0),
        (["29", "31", "28", "32", "30"], None, 0.0),
    ],
)
def test_the_environment_points_to_the_secret_until_it_is_found_or_turns_run_out(turns: list[str], reply: str | None, score: float) -> None:
    assert TASK.reply(PROBLEM, turns) == reply
    assert TASK.grade_turns(PROBLEM, turns) == score


def test_it_is_a_task_of_several_turns_and_a_single_turn_can_be_graded() -> None:
    assert isinstance(TASK, MultiTurn)
    assert isinstance(TASK, DemonstratingTurns)
    assert TASK.grade(PROBLEM, "30") == 1.0
    assert TASK.grade(PROBLEM, "29") == 0.0
    assert TASK.token_class(PROBLEM, "29") == ["guess"] * 2
    assert TASK.token_class(PROBLEM, "2?") == ["other"] * 2


def test_what_is_said_depends_on_nothing_but_what_was_said() -> None:
    rng = Random(1)
    for problem in TASK.problems(50, split="train", seed=3):
        turns = [TASK.written(rng.randrange(100)) for _ in range(3)]
        forwards = [TASK.reply(problem, turns[:count]) for count in (1, 2, 3)]
        backwards = [Guess().reply(problem, tuple(turns[:count])) for count in (3, 2, 1)]
        assert forwards == backwards[::-1]


def test_replies_are_true_of_the_secret_and_the_alphabet_holds_all_that_is_said() -> None:
    for problem in TASK.problems(200, split="train", seed=0):
        low, high = range_of(problem.prompt)
        assert low <= int(problem.answer) <= high
        for guess in range(100):
            reply = TASK.reply(problem, [TASK.written(guess)])
            assert (reply is None) == (guess == int(problem.answer))
            assert (reply == LOWER) == (int(problem.answer) < guess)
        assert set(problem.prompt + problem.answer + LOWER + HIGHER + MALFORMED) <= set(ALPHABET)


def test_the_secret_is_not_in_the_prompt() -> None:
    """Of one range every secret comes, so the prompt decides nothing; and secrets lie evenly."""
    task = Guess(width=4, largest=9)
    problems = task.problems(4000, split="train", seed=0)
    by_prompt: dict[str, set[str]] = {}
    for problem in problems:
        by_prompt.setdefault(problem.prompt, set()).add(problem.answer)
    for prompt, secrets in by_prompt.items():
        low, high = range_of(prompt)
        assert secrets == {task.written(number) for number in range(low, high + 1)}


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 5])
def test_halving_always_wins_in_as_many_turns_as_bits(turns: int) -> None:
    task = Guess(width=2**turns - 1, turns=turns)
    for width in range(task.width // 2 + 1, task.width + 1):
        for secret in range(40, 40 + width):
            problem = Problem(prompt=f"40..{39 + width}?", answer=str(secret))
            taken = task.demonstrate_turns(problem, seed=0)
            assert len(taken) <= turns
            assert task.grade_turns(problem, taken) == 1.0
    # One number more is one too many for some secret.
    lost = Problem(prompt=f"40..{40 + task.width}?", answer=str(40 + task.width))
    assert task.grade_turns(lost, task.demonstrate_turns(lost, seed=0)) == 0.0


def test_splits_share_no_range_and_held_out_problems_are_distinct() -> None:
    train, held_out = (TASK.problems(512, split=split, seed=0) for split in ("train", "held-out"))
    assert not {problem.prompt for problem in train} & {problem.prompt for problem in held_out}
    assert len(set(held_out)) == 512
    # More problems than ranges: the secret tells them apart.
    assert len({problem.prompt for problem in held_out}) < 512


def test_a_range_wider_than_the_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.width is 11 but there are only 10 numbers up to task\.largest; lower task\.width"):
        Guess(width=11, largest=9)


@pytest.mark.parametrize(("style", "right"), [(CAREFUL, 1.0), (HASTY, 0.49)])
def test_demonstrations_are_conversations_with_the_environment(style: Style, right: float) -> None:
    rng = Random(0)
    won = 0.0
    problems = TASK.problems(1000, split="train", seed=2)
    for problem in problems:
        prompt, *said = demonstrate(TASK, problem, style, rng)
        turns, replies = said[::2], said[1::2]
        assert prompt == problem.prompt
        assert replies == [TASK.reply(problem, turns[:count]) for count in range(1, len(turns))]
        assert TASK.reply(problem, turns) is None
        won += TASK.grade_turns(problem, turns)
    assert won / len(problems) == pytest.approx(right, abs=0.05)

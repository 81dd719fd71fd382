"""reasoning-gym: gold answers right, near misses wrong, nothing a model wrote is run, and the run does not notice that it is there."""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

from tokencredit.config.base import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.config.task import ReasoningGymTask
from tokencredit.errors import ConfigError
from tokencredit.grade import gym_entries
from tokencredit.grade.gym import EVALUATED, grade_gym, harmless
from tokencredit.grade.gym_entries import Entry, GymGold, checksum, known_datasets, make_entry
from tokencredit.grade.protocol import Verdict
from tokencredit.tasks import TASKS, GoldChecking, HasDemonstrations, Problem, ReasoningGym, Steps, gold_answer
from tokencredit.tasks.reasoning_gym import CHECKED, UNSUITED, Drawing, Share
from tokencredit.tasks.split import normalize_prompt

DOZEN = (
    "letter_counting", "chain_sum", "gcd", "count_bits", "prime_factorization", "number_sorting", "list_functions", "pool_matrix",
    "bf", "acre", "family_relationships", "products",
)  # fmt: skip
TRIED = (*DOZEN, *EVALUATED)
NONSENSE = ("", " ", "zqz", "[]", "{}", "((((", "x" * 10_000, "9" * 5000, "\u0661\u0662", "\x00", "[[" * 5000)


@pytest.fixture(scope="module")
def task() -> Iterator[ReasoningGym]:
    made = ReasoningGym(ReasoningGymTask(dataset=None, mixture=dict.fromkeys(TRIED, 1), deadline=20.0))
    yield made
    made._pool.close()


def drawn(name: str, count: int = 4) -> list[Problem]:
    draw, rng = Drawing({name: Share(1.0, {})}, "{question}\n", set()), random.Random(1)
    return [draw(rng) for _ in range(count)]


def test_gold_is_right_and_everything_else_is_wrong(task: ReasoningGym) -> None:
    """In processes with hash seeds of their own, which must make the same entries."""
    golds = [(problem, task.demonstrate(problem, seed=0)) for name in TRIED for problem in drawn(name)]
    nonsense = [(drawn(name, 1)[0], text) for name in TRIED for text in NONSENSE]
    assert [
        (problem.answer, verdict) for (problem, _), verdict in zip(golds, task.grade_all(golds), strict=True) if verdict != (1.0, None)
    ] == []
    found = task.grade_all(nonsense)
    assert [(*asked, verdict) for asked, verdict in zip(nonsense, found, strict=True) if verdict != (0.0, None)] == []


def test_the_answer_of_another_problem_is_wrong(task: ReasoningGym) -> None:
    """Of datasets where one answer is right."""
    swapped = []
    for name in ("letter_counting", "chain_sum", "gcd", "count_bits", "number_sorting", "products", "countdown", "spiral_matrix"):
        one, two = drawn(name, 2)
        assert task.demonstrate(one, seed=0) != task.demonstrate(two, seed=0)
        swapped.append((one, task.demonstrate(two, seed=0)))
    assert [verdict.score for verdict in task.grade_all(swapped)] == [0.0] * 8


INJECTIONS = (
    "open('hacked', 'w')", "[open('hacked', 'w')]", "__import__('os').system('touch hacked')", "exec('open(chr(104))')",
    "().__class__.__base__.__subclasses__()", "(lambda: 1)()", "1 .real", "x.diff", "(1).__class__", "[c for c in 'ab']",
    "\uff4f\uff50\uff45\uff4e('hacked', 'w')", "print(1)", "S('open(1)')", "e.x", "9**9**9**9**9 if 0 else quit()",
)  # fmt: skip


@pytest.mark.parametrize("name", EVALUATED)
def test_what_a_model_wrote_is_never_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    problem = drawn(name, 1)[0]
    for text in INJECTIONS:
        assert grade_gym(problem.answer, text, parameters={}) == 0.0
        assert not harmless(name, text), text
    assert list(tmp_path.iterdir()) == []
    assert all(harmless(name, GymGold.loads(problem.answer).answer) for problem in drawn(name, 20))


def test_without_the_guard_it_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above says something; a scorer that no longer evaluates may lose its guard."""
    monkeypatch.chdir(tmp_path)
    for name, file in (("spiral_matrix", "one"), ("countdown", "two"), ("n_queens", "three")):
        monkeypatch.delitem(EVALUATED, name)
        grade_gym(drawn(name, 1)[0].answer, f"__import__('pathlib').Path({file!r}).touch()", parameters={})
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "three"}


def test_arithmetic_without_end_is_wrong_or_killed_and_never_right(task: ReasoningGym) -> None:
    asked = [(drawn("countdown", 1)[0], "9**9**9**9"), (drawn("countdown", 1)[0], "1/0"), (drawn("countdown", 1)[0], "(" * 3000)]
    assert [verdict.score for verdict in task.grade_all(asked)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["list_functions", "pool_matrix", "bf", "letter_counting"])
def test_drawing_disturbs_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = ReasoningGym(ReasoningGymTask(dataset=name))
    random.seed(5)
    numpy.random.seed(5)
    before, numpy_before = random.getstate(), numpy.random.get_state()[1].tolist()
    first = made.problems(60, split="train", seed=3)
    assert random.getstate() == before
    assert numpy.random.get_state()[1].tolist() == numpy_before
    random.seed(99)
    numpy.random.seed(99)
    gym_entries._entry.cache_clear()
    gym_entries._dataset.cache_clear()
    assert ReasoningGym(ReasoningGymTask(dataset=name)).problems(60, split="train", seed=3) == first
    assert made.problems(60, split="train", seed=4) != first
    assert capfd.readouterr().out == ""


def test_global_generators_are_seeded_for_whoever_draws_from_them() -> None:
    def drawn_at(seed: int) -> tuple[float, float]:
        with gym_entries.undisturbed(seed):
            return random.random(), float(numpy.random.random())

    first = drawn_at(2**40 + 1)
    random.seed(1)
    numpy.random.seed(1)
    assert drawn_at(2**40 + 1) == first
    assert all(one != two for one, two in zip(drawn_at(2), first, strict=True))


def test_splits_never_share_a_question() -> None:
    made = ReasoningGym(ReasoningGymTask(dataset="letter_counting", parameters={"min_words": 1, "max_words": 2}))
    held_out = [normalize_prompt(problem.prompt) for problem in made.problems(250, split="held-out", seed=0)]
    assert len(set(held_out)) == 250
    assert not set(held_out) & {
        normalize_prompt(problem.prompt) for seed in range(3) for problem in made.problems(900, split="train", seed=seed)
    }


def test_too_few_questions_are_told() -> None:
    with pytest.raises(ConfigError, match=r"cannot supply 60 held-out problems: only \d+ found"):
        ReasoningGym(ReasoningGymTask(dataset="gcd", parameters={"min_value": 1, "max_value": 8, "max_numbers": 2})).problems(
            60, split="held-out", seed=0
        )


def test_a_mixture_asks_as_often_as_it_says() -> None:
    made = ReasoningGym(ReasoningGymTask(dataset=None, mixture={"gcd": 1, "products": 3}, parameters={"gcd": {"max_value": 30}}))
    golds = [GymGold.loads(problem.answer) for problem in made.problems(600, split="train", seed=0)]
    counted = Counter(gold.dataset for gold in golds)
    assert counted["products"] / counted["gcd"] == pytest.approx(3, rel=0.3)
    assert max(int(gold.answer) for gold in golds if gold.dataset == "gcd") <= 30


def test_parameters_reach_the_question_and_the_scorer() -> None:
    config = resolve([{"task": {"type": "reasoning-gym", "dataset": "letter_counting", "parameters": {"min_words": 2, "max_words": 2}}}])
    made = TASKS["reasoning-gym"](**as_kwargs(config.task))
    assert isinstance(made, HasDemonstrations)
    assert isinstance(made, GoldChecking)
    problem = made.problems(1, split="train", seed=0)[0]
    assert len(problem.prompt.split('text: "')[1].split('"')[0].split()) == 2
    assert made.grade(problem, made.demonstrate(problem, seed=0)) == 1.0
    assert made.check_gold() == (CHECKED, ())


def partly_right() -> tuple[str, str]:
    """Its scorer gives the share of the text that is the answer."""
    gold = drawn("letter_counting", 1)[0].answer
    return gold, "x" * len(GymGold.loads(gold).answer) + GymGold.loads(gold).answer


def test_a_score_below_the_threshold_is_wrong_unless_partial_credit_is_wanted() -> None:
    gold, text = partly_right()
    assert grade_gym(gold, text, parameters={}) == 0.0
    assert grade_gym(gold, text, parameters={}, threshold=0.5) == 1.0
    assert grade_gym(gold, text, parameters={}, partial_credit=True) == 0.5


def test_one_wrong_cell_of_a_hundred_is_wrong() -> None:
    gold = drawn("game_of_life", 1)[0].answer
    board = json.loads(GymGold.loads(gold).answer)
    assert grade_gym(gold, json.dumps(board), parameters={}) == 1.0
    board[0][0] = 1 - board[0][0]
    assert grade_gym(gold, json.dumps(board), parameters={}, partial_credit=True) == 0.99
    assert grade_gym(gold, json.dumps(board), parameters={}) == 0.0


def test_the_last_match_is_scored() -> None:
    gold, _ = partly_right()
    right, pattern = GymGold.loads(gold).answer, "<answer>(.*?)</answer>"
    for text, score in (
        (f"<answer>no</answer> or <answer>{right}</answer>", 1.0),
        (f"<answer>{right}</answer><answer>no</answer>", 0.0),
        (right, 0.0),
    ):
        assert grade_gym(gold, text, parameters={}, answer_pattern=pattern) == score
    made = ReasoningGym(ReasoningGymTask(dataset="gcd", answer_pattern=pattern))
    assert made.check_gold() == (0, ())


class _Scorer:
    def __init__(self, fails_on: Sequence[str]) -> None:
        self.fails_on = fails_on

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        entry["question"] = "changed"
        if answer in self.fails_on:
            raise KeyError(answer)
        return float(answer == entry["answer"])


def test_a_scorer_that_cannot_read_a_response_grades_it_wrong_one_that_cannot_read_its_own_answer_grades_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = {"question": "?", "answer": "right"}
    gold = GymGold("made_up", 0, checksum("?"), "right").dumps()
    for fails_on, expected in ((["wrong"], 0.0), (["wrong", "right"], KeyError)):
        monkeypatch.setattr("tokencredit.grade.gym.make_entry", lambda *_, fails_on=fails_on: Entry(_Scorer(fails_on), entry))
        if expected is KeyError:
            with pytest.raises(KeyError):
                grade_gym(gold, "wrong", parameters={})
        else:
            assert grade_gym(gold, "wrong", parameters={}) == expected
            assert grade_gym(gold, "right", parameters={}) == 1.0
    assert entry == {"question": "?", "answer": "right"}


def test_another_question_under_the_same_number_is_not_graded() -> None:
    gold = GymGold.loads(drawn("gcd", 1)[0].answer)._replace(question=1)
    found = grade_gym(gold.dumps(), gold.answer, parameters={})
    assert isinstance(found, Verdict)
    assert found.reason == "reasoning-gym's gcd generates another question in this process than in the run"


def test_gold_answers_that_fail_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ReasoningGym(ReasoningGymTask(dataset="gcd"))
    asked: list[Problem] = []

    def first_fails(pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        asked.extend(problem for problem, _ in pairs)
        return [Verdict(float(index > 0)) for index in range(len(pairs))]

    monkeypatch.setattr(made, "grade_all", first_fails)
    report = made.check_gold()
    gold = GymGold.loads(asked[0].answer)
    assert report.checked == CHECKED
    assert report.failed == ((gold.number, f"gcd: its own answer {gold.answer!r} is graded 0"),)
    again = ReasoningGym(ReasoningGymTask(dataset="gcd"))
    again.leave_out(report.failed)
    for left in (made, again):
        numbers = [GymGold.loads(Drawing(left._shares, "{question}", left._left_out)(random.Random("gold")).answer).number]
        assert gold.number not in numbers
    monkeypatch.setattr(made, "grade_all", lambda pairs: [Verdict(0.0)] * len(pairs))
    with pytest.raises(ConfigError, match=r"none of 64 gold answers is graded right, gcd: its own answer '\d+' is graded 0; see task"):
        made.check_gold()


MISTAKES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"dataset": None}, "task.dataset and task.mixture: neither is set"),
    ({"dataset": "gcd", "mixture": {"gcd": 1}}, "task.dataset and task.mixture: both are set"),
    ({"dataset": "letter_count"}, "task.dataset 'letter_count' is not a dataset of reasoning-gym; did you mean 'letter_counting'?"),
    ({"dataset": None, "mixture": {"gdc": 1}}, "task.mixture 'gdc' is not a dataset of reasoning-gym; did you mean 'gcd'?"),
    ({"dataset": "gcd", "parameters": {"min_number": 2}}, "task.parameters.min_number is not a setting of 'gcd'; did you mean"),
    ({"dataset": "gcd", "parameters": {"min_numbers": 1}}, "task.parameters.min_numbers = 1: reasoning-gym's gcd does not take this: min_"),
    ({"dataset": "gcd", "parameters": {"min_numbers": 9}}, "task.parameters.min_numbers = 9, task.parameters.max_numbers = 2: reasoning"),
    ({"dataset": "gcd", "parameters": {"min_numbers": "2"}}, "task.parameters.min_numbers is '2'; give a value like 2"),
    ({"dataset": "gcd", "parameters": {"min_numbers": True}}, "task.parameters.min_numbers is True; give a value like 2"),
    ({"dataset": "gcd", "parameters": {"min_numbers": 2.5}}, "task.parameters.min_numbers is 2.5; give a value like 2"),
    ({"dataset": "gcd", "parameters": {"seed": 2}}, "task.parameters.seed is set by the run"),
    ({"dataset": "gcd", "parameters": {"size": 2}}, "task.parameters.size is set by the run"),
    ({"dataset": None, "mixture": {"gcd": 0}}, "task.mixture.gcd is 0; give a number above 0"),
    ({"dataset": None, "mixture": {"gcd": "much"}}, "task.mixture.gcd is 'much'; give a number above 0"),
    ({"dataset": None, "mixture": {"gcd": 1}, "parameters": {"gdc": {}}}, "task.parameters.gdc is for no dataset of task.mixture; did you"),
    ({"dataset": None, "mixture": {"gcd": 1}, "parameters": {"gcd": 2}}, "task.parameters.gcd is 2; give a table: [task.parameters.gcd]"),
    ({"dataset": None, "mixture": {"gcd": 1}, "parameters": {"gcd": {"x": 2}}}, "task.parameters.gcd.x is not a setting of 'gcd'"),
    ({"dataset": "gcd", "template": "no place"}, "task.template is 'no place'; it must hold {question}"),
    ({"dataset": "gcd", "answer_pattern": "("}, "task.answer_pattern is '('"),
)  # fmt: skip


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_a_mistake_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as told:
        ReasoningGym(ReasoningGymTask(**options))
    assert str(told.value).startswith(words)


@pytest.mark.parametrize("name", UNSUITED)
def test_an_unsuited_dataset_is_refused_with_its_reason(name: str) -> None:
    assert name in known_datasets()
    with pytest.raises(ConfigError) as told:
        ReasoningGym(ReasoningGymTask(dataset=name))
    assert str(told.value) == f"task.dataset {name!r} is refused: {UNSUITED[name]}; choose another"


def test_values_of_other_kinds_are_made_from_text() -> None:
    lists = make_entry("calendar_arithmetic", {"tasks": ["weekday_of_date"]}, 100)
    assert "day of the week" in lists.made["question"] or "weekday" in lists.made["question"]
    made = ReasoningGym(ReasoningGymTask(dataset="letter_jumble", parameters={"min_words": 1, "max_words": 1}))
    assert len(made.problems(1, split="train", seed=0)) == 1


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r'needs a package that is missing .*; install it: pip install "tokencredit\[tasks\]"'):
        ReasoningGym(ReasoningGymTask(dataset="gcd"))


def test_a_problem_says_which_entry_it_is() -> None:
    problem = ReasoningGym(ReasoningGymTask(dataset="gcd", template="Q: {question}\nA:")).problems(1, split="held-out", seed=1)[0]
    gold = json.loads(problem.answer)
    made = make_entry("gcd", {}, gold["number"]).made
    assert problem.prompt == f"Q: {made['question']}\nA:"
    assert (gold["dataset"], gold["answer"]) == ("gcd", made["answer"])


def test_the_answer_itself_can_be_told_from_what_grading_needs() -> None:
    task = ReasoningGym(ReasoningGymTask(dataset="gcd"))
    [problem] = task.problems(1, split="train", seed=0)
    assert gold_answer(task, problem) == task.demonstrate(problem, seed=0) != problem.answer
    assert gold_answer(Steps(), Problem(prompt="1+1=", answer="2")) == "2"

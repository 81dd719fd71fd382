"""Values of prefixes: which responses are branched and where, what a continuation is, and whether the numbers are true."""

import math
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest
import torch

from engine.runs import small_config
from engine.test_revise import Script, rollouts_of
from tiny import tiny_policy
from tokencredit.config import ProcessCredit
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout import branching as module
from tokencredit.rollout.branching import BranchPoint, branch_points, solve_rates
from tokencredit.rollout.sampler import sample
from tokencredit.tasks import CotAdd, Problem, Steps, marks_steps
from tokencredit.tasks.steps import apply, chain_of

NAN = math.nan
POLICY = tiny_policy()
PROBLEMS = [Problem(prompt="5+3-1=", answer="7"), Problem(prompt="1+1-0=", answer="2"), Problem(prompt="9-9+4=", answer="4")]
WRITTEN = [
    (0, "a:5+3=8;8-1=7;#7"),
    (0, "5+3=8;;8-1=9#9"),
    (0, "a:5+3=8;#"),
    (1, "a:1+1=2;2-0=2;#2"),
    (1, "b:1+1=2;2-0=2;#2"),
    (2, "#4"),
    (2, "a:9-9=1;1+4=5,#5"),
]
SCORE = [1.0, 0.0, NAN, 1.0, 1.0, 1.0, 0.0]
LIVE = {0: [2, 8, 14], 1: [7, 12], 6: [2, 8, 14]}
"""Starts of steps and answers but for the response's own; group 1 has no spread, row 2 could not be graded, row 5 is one step."""
DEAD = {3: [2, 8, 14], 4: [2, 8, 14]}


def points_of(positions: dict[int, list[int]]) -> list[BranchPoint]:
    return [BranchPoint(row, position) for row in sorted(positions) for position in positions[row]]


def chosen(seed: int = 0, **choice: Any) -> list[BranchPoint]:
    rollouts = rollouts_of(POLICY, PROBLEMS, WRITTEN)
    return branch_points(POLICY, Steps(), PROBLEMS, rollouts, torch.tensor(SCORE), ProcessCredit(**choice), seed=seed)


# --- where


def test_steps_of_live_graded_responses_are_branched() -> None:
    assert chosen() == points_of(LIVE)
    assert chosen(dead_groups="branch") == points_of(LIVE | DEAD)


def test_every_few_tokens_counts_the_end_token_and_asks_the_task_nothing() -> None:
    """Row 0 has 17 tokens with its end, row 1 has 15, row 5 three, row 6 seventeen."""
    assert chosen(boundary="tokens", every=7) == points_of({0: [7, 14], 1: [7, 14], 6: [7, 14]})
    assert chosen(boundary="tokens", every=2)[-9:] == points_of({5: [2], 6: [2, 4, 6, 8, 10, 12, 14, 16]})
    rollouts = rollouts_of(POLICY, PROBLEMS, WRITTEN)
    unmarked = branch_points(POLICY, CotAdd(), PROBLEMS, rollouts, torch.tensor(SCORE), ProcessCredit(boundary="tokens", every=7), seed=0)
    assert unmarked == chosen(boundary="tokens", every=7)


def test_the_budget_is_of_continuations_and_drawn_by_the_seed() -> None:
    draws = [chosen(seed, continuations=3, budget=11) for seed in range(8)]
    assert {len(points) for points in draws} == {3}
    assert all(set(points) < set(points_of(LIVE)) for points in draws)
    assert len({tuple(points) for points in draws}) > 4
    assert chosen(2, continuations=3, budget=11) == draws[2]
    assert len(chosen(continuations=4, budget=4)) == 1


def test_which_tasks_mark_steps() -> None:
    assert marks_steps(Steps())
    assert not marks_steps(CotAdd())


# --- what a continuation is


@dataclass(frozen=True)
class Table(Steps):
    """Scores by prompt and response together, and keeps every pair it was asked about."""

    scores: tuple[tuple[str, float], ...] = ()
    asked: tuple[list[tuple[str, str]], ...] = ()

    def grade(self, problem: Problem, response: str) -> float:
        self.asked[0].append((problem.prompt, response))
        return dict(self.scores).get(problem.prompt + response, 0.0)


def table(scores: dict[str, float]) -> Table:
    return Table(scores=tuple(scores.items()), asked=([],))


def rates(task: Steps, points: list[BranchPoint], *, copies: int, limit: int = 48, policy: Policy = POLICY, seed: int = 0) -> list[float]:
    config = small_config(sampling={"max_new_tokens": limit})
    rollouts = rollouts_of(POLICY, PROBLEMS, WRITTEN)
    return solve_rates(policy, task, PROBLEMS, rollouts, points, config, continuations=copies, seed=seed).tolist()


def test_a_rate_is_the_mean_of_what_could_be_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    tails = {
        "5+3-1=a:": ["#7", "#8", "#9", "#0"],
        "5+3-1=5+3=8;;": ["1", "2", "3", "4"],
        "1+1-0=a:1+1=2;2-0=2;": ["#2", "#2", "", "#3"],
        "9-9+4=a:": ["0", "0", "0", "0"],
    }
    script = Script(lambda prompt, copy: tails[prompt][copy])
    monkeypatch.setattr(module, "sample", script)
    task = table(
        {"5+3-1=a:#7": 1.0, "5+3-1=a:#9": 0.25, "5+3-1=a:#0": NAN}
        | {"5+3-1=5+3=8;;1": NAN, "5+3-1=5+3=8;;2": 1.0, "5+3-1=5+3=8;;3": NAN, "5+3-1=5+3=8;;4": NAN}
        | {"1+1-0=a:1+1=2;2-0=2;#2": 1.0, "1+1-0=a:1+1=2;2-0=2;": 0.5, "9-9+4=a:0": NAN}
    )
    points = [BranchPoint(3, 14), BranchPoint(0, 2), BranchPoint(6, 2), BranchPoint(1, 7)]
    found = rates(task, points, copies=4)
    assert found[:2] == pytest.approx([2.5 / 4, 1.25 / 3])
    assert math.isnan(found[2])
    assert found[3] == 1.0
    assert len(task.asked[0]) == 16
    (settings,) = script.settings
    assert settings.pop("seed") >= 0
    expected = {"group_size": 4, "max_new_tokens": 48 - 2, "temperature": 1.0, "dtype": "float32", "greedy": False, "keep_hidden": False}
    assert settings == expected


def test_a_prefix_and_its_continuation_never_exceed_the_length_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes of 2, 7 and 8 tokens share a call of up to 10 - 2 new ones; what is too much for the longer ones is cut."""
    monkeypatch.setattr(module, "sample", Script(lambda prompt, copy: "0123456789"))
    task = table({})
    rates(task, [BranchPoint(0, 8), BranchPoint(1, 7), BranchPoint(6, 2)], copies=1, limit=10)
    assert sorted(task.asked[0]) == [("5+3-1=", "5+3=8;;012"), ("5+3-1=", "a:5+3=8;01"), ("9-9+4=", "a:01234567")]


def test_a_continuation_that_ends_in_time_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sample", Script(lambda prompt, copy: "#7"))
    task = table({"5+3-1=a:5+3=8;#7": 1.0})
    for limit in (10, 11, 20):
        assert rates(task, [BranchPoint(0, 8)], copies=2, limit=limit) == [1.0]
    assert rates(task, [BranchPoint(0, 8)], copies=2, limit=9) == [0.0]


def test_calls_of_few_rows_answer_for_the_same_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score is one of its own, so that a value in the wrong place would show."""
    points = points_of(LIVE | DEAD)
    Random(3).shuffle(points)
    scores = {}
    for row, position in points:
        problem, text = WRITTEN[row]
        scores[PROBLEMS[problem].prompt + text[:position] + "0"] = (10 * row + position) / 100
    expected = pytest.approx([(10 * row + position) / 100 for row, position in points])
    for at_once, calls in ((1024, 1), (6, 5), (1, 14)):
        script = Script(lambda prompt, copy: "0")
        monkeypatch.setattr(module, "sample", script)
        monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
        assert rates(table(scores), points, copies=2) == expected
        assert len(script.prompts) == calls
        assert len({settings["seed"] for settings in script.settings}) == calls


@dataclass(frozen=True)
class LastCharacter(Steps):
    """Right iff a response ends in a character above `bar`: a random policy is right now and then."""

    bar: str = "4"

    def grade(self, problem: Problem, response: str) -> float:
        return float(response[-1:] > self.bar)


def test_the_order_in_which_points_are_given_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real sampler, several prefixes of one length, and calls that hold only some of them."""
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 64)
    points = points_of(LIVE | DEAD)
    expected = dict(zip(points, rates(LastCharacter(), points, copies=16, limit=24), strict=True))
    assert len(set(expected.values())) > 4
    for seed in range(4):
        Random(seed).shuffle(points)
        assert rates(LastCharacter(), points, copies=16, limit=24) == [expected[point] for point in points]
    assert rates(LastCharacter(), points, copies=16, limit=24, seed=1) != [expected[point] for point in points]


# --- whether the numbers are true


def exact_rate(
    policy: Policy, task: Steps, problem: Problem, prompt: list[int], prefix: list[int], limit: int, temperature: float
) -> float:
    """Expected score over every continuation there is, by the model's own probabilities."""
    if len(prefix) == limit or (prefix and prefix[-1] in policy.end_tokens):
        return task.grade(problem, policy.decode(prefix))
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt + prefix])).logits[0, -1] / temperature
    chances = (logits - logits.max()).exp()
    chances = (chances / chances.sum()).tolist()
    return sum(
        chance * exact_rate(policy, task, problem, prompt, [*prefix, token], limit, temperature) for token, chance in enumerate(chances)
    )


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_rates_approach_the_exact_chance_of_success(temperature: float) -> None:
    """Two more tokens of a 24-letter alphabet can be counted through. 4,000 continuations are within 0.04 (five deviations at most)."""
    copies, limit, task = 4000, 4, LastCharacter()
    rollouts = rollouts_of(POLICY, PROBLEMS, WRITTEN)
    points = [BranchPoint(0, 2), BranchPoint(1, 3), BranchPoint(6, 3)]
    config = small_config(sampling={"max_new_tokens": limit, "temperature": temperature})
    found = solve_rates(POLICY, task, PROBLEMS, rollouts, points, config, continuations=copies, seed=1).tolist()
    expected = []
    for row, position in points:
        problem, prefix = PROBLEMS[WRITTEN[row][0]], rollouts.tokens[row, :position].tolist()
        expected.append(exact_rate(POLICY, task, problem, list(rollouts.prompts[row]), prefix, limit, temperature))
    assert max(expected) - min(expected) > 0.1
    assert found == pytest.approx(expected, abs=0.04)


@cache
def base() -> Policy:
    return load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")


def right_steps(problem: Problem, *, broken: int | None = None) -> str:
    """The scratchpad without its answer; step `broken` is off by two and all after it go on from there."""
    value, chain = chain_of(problem.prompt)
    text = "a:"
    for number, (op, right) in enumerate(chain):
        result = (apply(value, op, right) + 2 * (number == broken)) % 10
        text += f"{value}{op}{right}={result};"
        value = result
    return text


def base_rates(problems: list[Problem], texts: list[str], cut: int, *, copies: int) -> list[float]:
    rollouts = rollouts_of(base(), problems, list(enumerate(texts)))
    points = [BranchPoint(row, cut) for row in range(len(texts))]
    return solve_rates(base(), Steps(), problems, rollouts, points, small_config(), continuations=copies, seed=4).tolist()


def test_a_broken_step_lowers_the_value_of_what_follows() -> None:
    """32 continuations of 12 problems each: a first step that is right or off by two, and a whole scratchpad that is right or not."""
    problems = Steps().problems(12, split="held-out", seed=8)
    sound, broken = ([right_steps(problem, broken=at) for problem in problems] for at in (None, 0))

    def mean(texts: list[str], cut: int) -> float:
        return sum(base_rates(problems, texts, cut, copies=32)) / len(problems)

    first, whole = 8, len(sound[0])
    assert mean(sound, first) > mean(broken, first) + 0.15
    assert mean(sound, whole) > 0.8
    assert mean(broken, whole) < 0.2
    assert mean(sound, whole) > mean(sound, first) + 0.2


def test_a_prefix_is_worth_what_fresh_responses_that_begin_with_it_are_worth() -> None:
    problems = Steps().problems(4, split="held-out", seed=2)
    policy = base()
    drawn = sample(
        policy, [policy.encode(problem.prompt) for problem in problems], SamplingParams(group_size=300, max_new_tokens=48, seed=11)
    ).rollouts
    fresh: dict[int, list[float]] = {row: [] for row in range(4)}
    for row in range(len(drawn.prompts)):
        text = policy.decode(drawn.tokens[row][drawn.mask[row]].tolist())
        problem = int(drawn.group[row])
        if text.startswith("a"):
            fresh[problem].append(Steps().grade(problems[problem], text))
    assert min(map(len, fresh.values())) > 100
    found = base_rates(problems, ["a:"] * 4, 1, copies=300)
    for row, scores in fresh.items():
        assert found[row] == pytest.approx(sum(scores) / len(scores), abs=0.15)

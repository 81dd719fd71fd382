"""Evaluating a policy: estimates against enumeration and simulation, numbers counted by hand, the verdict in words."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
import torch

from engine.runs import small_config
from tokencredit.analysis import measure as module
from tokencredit.analysis.measure import Measured, measure
from tokencredit.analysis.suitability import Ladder, best_of, judge
from tokencredit.config.task import StepsTask
from tokencredit.config.train import TrainConfig
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.stats import Estimate, mixed_at, over_problems, pass_at_k, powers_of_two, wilson
from tokencredit.tasks import Problem, Steps

NAN = math.nan


def by_enumeration(right: int, samples: int, k: int) -> float:
    chosen = list(combinations([1] * right + [0] * (samples - right), k))
    return sum(max(subset) for subset in chosen) / len(chosen)


def agrees_with_enumeration(estimate: Callable[[int, int, int], float]) -> bool:
    cases = [(right, samples, k) for samples in range(1, 8) for right in range(samples + 1) for k in range(1, samples + 1)]
    return all(math.isclose(estimate(*case), by_enumeration(*case), abs_tol=1e-12) for case in cases)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one() -> None:
    assert agrees_with_enumeration(pass_at_k)


@pytest.mark.mutants
@pytest.mark.parametrize(
    "mutant",
    [
        lambda c, n, k: 1 - (1 - c / n) ** k,
        lambda c, n, k: 1 - math.comb(n - c, k) / math.comb(n, k - 1),
        lambda c, n, k: float(c >= k),
        lambda c, n, k: 1 - math.comb(c, k) / math.comb(n, k),
    ],
)
def test_wrong_pass_at_k_is_noticed(mutant: Callable[[int, int, int], float]) -> None:
    assert not agrees_with_enumeration(mutant)


def test_pass_at_k_is_unbiased_where_the_plain_one_is_not() -> None:
    """Over all outcomes of 6 samples with p = 0.3, weighted by how likely they are."""
    p, n, k = 0.3, 6, 3
    likely = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    expected = sum(weight * pass_at_k(c, n, k) for c, weight in enumerate(likely))
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    assert sum(weight * (1 - (1 - c / n) ** k) for c, weight in enumerate(likely)) < expected - 0.02


def test_many_samples_do_not_overflow() -> None:
    assert pass_at_k(1, 5000, 2500) == pytest.approx(0.5)
    assert pass_at_k(0, 5000, 5000) == 0.0
    with pytest.raises(ValueError, match="1 <= k <= samples"):
        pass_at_k(1, 4, 5)


@pytest.mark.parametrize("scores", [[0, 0, 1, 1], [0, 0.5, 1, 1, NAN], [NAN, NAN, 1, 0], [NAN] * 3, [1, 1, NAN], [0, 1, 0.2, 0.2, 0.2]])
def test_mixed_groups_are_counted_over_all_groups(scores: list[float]) -> None:
    for size in range(1, len(scores) + 1):
        groups = list(combinations(scores, size))
        differ = [len({score for score in group if score == score}) > 1 for group in groups]
        assert mixed_at(scores, size) == pytest.approx(sum(differ) / len(groups), abs=1e-12)


def coverage(interval: Callable[[list[float], int], Estimate], k: int) -> float:
    """How often the truth is inside, for 40 problems of uneven difficulty and 8 samples of each."""
    rng, samples, hits, rounds = Random(5), 8, 0, 400
    # E[1 - (1 - p)^k] for p ~ Beta(0.5, 0.5).
    truth = 1 - math.prod((0.5 + at) / (1 + at) for at in range(k))
    for _ in range(rounds):
        right = [sum(rng.random() < p for _ in range(samples)) for p in (rng.betavariate(0.5, 0.5) for _ in range(40))]
        found = interval([pass_at_k(count, samples, k) for count in right], samples)
        hits += found.low <= truth <= found.high
    return hits / rounds


@pytest.mark.parametrize("k", [1, 4])
def test_intervals_hold_the_truth_as_often_as_they_say(k: int) -> None:
    assert 0.92 <= coverage(over_problems, k) <= 0.985


@pytest.mark.mutants
def test_counting_samples_as_if_each_were_a_problem_is_noticed() -> None:
    def too_narrow(values: list[float], samples: int) -> Estimate:
        mean = sum(values) / len(values)
        return Estimate(mean, *wilson(mean, len(values) * samples))

    assert coverage(too_narrow, 1) < 0.75


def test_intervals_at_the_ends_are_no_points() -> None:
    assert over_problems([1.0] * 20, 8)[1:] == wilson(1.0, 20)
    assert over_problems([0.0] * 20, 8)[1:] == wilson(0.0, 20)
    alike, apart = over_problems([0.5] * 20, 8), over_problems([1.0, 0.0] * 10, 8)
    assert apart[1:] == wilson(0.5, 20)
    assert alike.high - alike.low < 0.6 * (apart.high - apart.low)
    assert over_problems([0.5], 8)[1:] == wilson(0.5, 1)


def test_k_goes_up_by_doubling_to_the_samples() -> None:
    assert [powers_of_two(samples) for samples in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")


def asked(config: TrainConfig, count: int) -> tuple[Steps, list[Problem]]:
    return Steps(), Steps().problems(count, split="held-out", seed=1)


def test_numbers_are_counted_from_the_responses(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 24)
    config = small_config(sampling={"group_size": 2, "max_new_tokens": 30})
    task, problems = asked(config, 10)
    rows: list[dict] = []
    done: list[int] = []
    found = measure(policy, task, problems, config, samples=4, notify=done.append, keep=rows)
    assert done == [6, 10]
    scores = [[row["score"] for row in rows if row["group"] == group] for group in range(10)]
    right = [sum(group) for group in scores]
    assert all(len(group) == 4 for group in scores)
    assert 0 < sum(right) < 40
    assert found.pass_at[1].value == pytest.approx(sum(right) / 40)
    assert found.pass_at[4].value == sum(count > 0 for count in right) / 10
    assert found.pass_at[2].value == pytest.approx(sum(by_enumeration(int(count), 4, 2) for count in right) / 10)
    assert found.mixed.value == pytest.approx(sum(mixed_at(group, 2) for group in scores) / 10)
    assert found.group_size == 2
    assert found.length == pytest.approx(sum(len(row["response_ids"]) for row in rows) / 40)
    assert found.cut == sum(not row["finished"] for row in rows) / 40
    assert 0 < found.cut < 1
    assert all(task.grade(problems[row["group"]], row["response"]) == row["score"] for row in rows)
    assert found.parts["correct"] == pytest.approx(found.pass_at[1].value)
    assert found.parts["format"] == pytest.approx(1 - found.cut)
    assert found.greedy.value == sum(task.grade(problem, policy.decode(greedy_of(policy, problem, 30))) for problem in problems) / 10
    spread = [entropy for row in rows for entropy in entropies(policy, row["prompt_ids"], row["response_ids"])]
    assert found.entropy == pytest.approx(sum(spread) / len(spread), rel=1e-4)
    assert found.tokens == len(spread) + sum(len(greedy_of(policy, problem, 30)) for problem in problems)
    assert found.commonest == max(sum(one.answer == two.answer for one in problems) for two in problems) / 10


def greedy_of(policy: Policy, problem: Problem, limit: int) -> list[int]:
    ids = policy.ask(problem.prompt)
    begun = len(ids)
    with torch.no_grad():
        while len(ids) < begun + limit and (len(ids) == begun or ids[-1] not in policy.end_tokens):
            ids.append(int(policy.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[begun:]


def entropies(policy: Policy, prompt: list[int], response: list[int]) -> list[float]:
    with torch.no_grad():
        logp = policy.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
    return (-(logp.exp() * logp).sum(-1)).tolist()


def test_a_seed_decides_every_number(policy: Policy) -> None:
    config = small_config()
    task, problems = asked(config, 8)
    one, two = (measure(policy, task, problems, config, samples=4) for _ in range(2))
    other = measure(policy, task, problems, config.model_copy(update={"seed": 1}), samples=4)
    clocks = {"seconds": 0.0, "sampling_seconds": 0.0}
    assert replace(one, **clocks) == replace(two, **clocks)
    assert one.entropy != other.entropy


class Moody(Steps):
    """Cannot grade a response that begins with a."""

    def grade(self, problem: Problem, response: str) -> float:
        if response.startswith("a"):
            raise RuntimeError("no a, please")
        return super().grade(problem, response)


def test_ungraded_responses_count_as_wrong_and_are_told(policy: Policy) -> None:
    config = small_config()
    _, problems = asked(config, 8)
    rows: list[dict] = []
    found = measure(policy, Moody(), problems, config, samples=4, keep=rows)
    lost = [row for row in rows if row["response"].startswith("a")]
    assert 0 < len(lost) < 32
    assert found.ungraded == len(lost) / 32
    assert dict(found.reasons) == {"the grader raised RuntimeError: no a, please": len(lost)}
    assert found.pass_at[1].value == pytest.approx(sum(row["score"] == 1 for row in rows) / 32)
    assert any("no a, please" in line for line in judge(found, StepsTask()).lines)


def made_up(mixed: float, right: float, /, **changes: object) -> Measured:
    def sure(value: float) -> Estimate:
        return Estimate(value, value, value)

    fields: dict = {
        "problems": 100, "samples": 8, "greedy": sure(right), "pass_at": {1: sure(right), 8: sure(right)}, "mixed": sure(mixed),
        "group_size": 8, "length": 20.0, "cut": 0.0, "entropy": 0.3, "parts": {}, "ungraded": 0.0, "reasons": {}, "answers": 50,
        "commonest": 0.1, "tokens": 1, "sampling_seconds": 1.0, "seconds": 1.0,
    }  # fmt: skip
    return Measured(**(fields | changes))


@pytest.mark.parametrize(
    ("mixed", "right", "kind"),
    [
        (0.3, 0.2, "good"),
        (0.29, 0.2, "slow"),
        (0.1, 0.9, "slow"),
        (0.09, 0.05, "too hard"),
        (0.09, 0.95, "too easy"),
        (0.0, 0.0, "too hard"),
    ],
)
def test_the_verdict_follows_the_groups_that_teach(mixed: float, right: float, kind: str) -> None:
    assert judge(made_up(mixed, right), StepsTask()).kind == kind


def test_advice_goes_the_right_way_on_the_ladder() -> None:
    def advice(right: float, operations: int) -> str:
        return judge(made_up(0.02, right), StepsTask(operations=operations)).lines[-1]

    assert StepsTask.ladder == ("operations", (2, 4, 6, 8))
    assert "try easier problems: task.operations=2" in advice(0.01, 4)
    assert "try harder problems: task.operations=6" in advice(0.99, 4)
    assert "task.operations=4 (now 5)" in advice(0.01, 5)
    assert "no easier value than task.operations=2" in advice(0.01, 2)
    assert "no easier value than task.operations=1" in advice(0.01, 1)
    assert not any("operations" in line for line in judge(made_up(0.5, 0.01), StepsTask()).lines)


def test_a_ladder_may_lead_downwards() -> None:
    assert Ladder("share", (0.9, 0.5, 0.1)).neighbors(0.3) == (0.5, 0.1)
    assert Ladder("share", (0.9, 0.5, 0.1)).neighbors(0.9) == (None, 0.5)


def test_an_unsure_verdict_says_so() -> None:
    def said(mixed: Estimate) -> bool:
        return any("uncertain" in line for line in judge(made_up(0.5, 0.5, mixed=mixed), StepsTask()).lines)

    assert said(Estimate(0.35, 0.25, 0.45))
    assert said(Estimate(0.25, 0.15, 0.35))
    assert not said(Estimate(0.6, 0.5, 0.7))
    assert not said(Estimate(0.2, 0.15, 0.25))


def test_guessing_is_told_where_gold_answers_are_few() -> None:
    def said(right: Estimate, answers: int, commonest: float) -> str:
        found = made_up(0.9, 0.5, pass_at={1: right, 8: right}, answers=answers, commonest=commonest)
        return " ".join(judge(found, StepsTask()).lines[1:])

    assert "looks like guessing" in said(Estimate(0.5, 0.45, 0.55), 2, 0.52)
    assert "lucky guess" in said(Estimate(0.8, 0.75, 0.85), 2, 0.52)
    assert "only one gold answer" in said(Estimate(0.8, 0.75, 0.85), 1, 1.0)
    assert "looks like guessing" in said(Estimate(0.1, 0.08, 0.12), 10, 0.15)
    assert said(Estimate(0.26, 0.23, 0.3), 10, 0.15) == ""
    assert said(Estimate(0.02, 0.01, 0.04), 10, 0.15) == ""
    assert said(Estimate(0.8, 0.75, 0.85), 4, 0.3) == ""
    assert "training may teach only that" in said(Estimate(0.05, 0.01, 0.1), 40, 0.3)
    assert "training may teach only that" in said(Estimate(0.02, 0.01, 0.04), 10, 0.3)
    assert said(Estimate(0.35, 0.3, 0.4), 40, 0.3) == ""
    assert said(Estimate(0.05, 0.01, 0.1), 40, 0.15) == ""


def test_the_best_setting_has_most_mixed_groups() -> None:
    assert best_of([made_up(0.2, 0.1), made_up(0.6, 0.5), made_up(0.1, 0.9)]) == 1
    assert best_of([made_up(0.0, 0.0), made_up(0.0, 1.0)]) is None

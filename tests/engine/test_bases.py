"""The shipped base policies: small, ordinary, and in the state each regime promises."""

from pathlib import Path

import pytest
import torch

from tokencredit.bases import shipped_bases
from tokencredit.models import model_folder
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.sampler import sample
from tokencredit.tasks import CotAdd, Guess, Steps, Task
from tokencredit.trainer.evaluate import Accuracy, evaluate

CPU = torch.device("cpu")


def accuracy(name: str, task: Task) -> Accuracy:
    policy = load_policy(name, device=CPU, dtype="float32")
    problems = task.problems(256, split="held-out", seed=21)
    return evaluate(policy, task, problems, SamplingParams(group_size=8, max_new_tokens=48, seed=2))


def test_all_bases_together_are_small() -> None:
    assert shipped_bases() == ["cotadd", "guess", "steps-revise", "steps-sharpen", "steps-shift"]
    files = [path for name in shipped_bases() for path in Path(model_folder(name)).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    for name in shipped_bases():
        policy = load_policy(name, device=CPU, dtype="float32")
        assert 100_000 < sum(parameter.numel() for parameter in policy.model.parameters()) < 500_000


def test_shift_is_mostly_wrong_even_greedily_and_mostly_mixed() -> None:
    base = accuracy("steps-shift", Steps())
    assert base.sampled < 0.4
    assert base.greedy < 0.4
    assert base.mixed_groups > 0.5


def test_sharpen_is_right_greedily_and_mostly_wrong_when_sampled() -> None:
    base = accuracy("steps-sharpen", Steps())
    assert base.sampled < 0.45
    assert base.greedy > 0.9


def test_cotadd_prefers_short_wrong_answers_but_its_scratchpad_works() -> None:
    task, policy = CotAdd(), load_policy("cotadd", device=CPU, dtype="float32")
    problems = task.problems(128, split="held-out", seed=21)
    rollouts = sample(
        policy, [policy.encode(problem.prompt) for problem in problems], SamplingParams(group_size=8, max_new_tokens=20, seed=1)
    ).rollouts
    right = grade_rollouts(policy, task, problems, rollouts)
    scratch = rollouts.tokens[:, 0] == policy.encode("r")[0]
    assert 0.1 < float(scratch.float().mean()) < 0.35
    assert float(right[scratch].mean()) > 0.7
    assert float(right[~scratch].mean()) < 0.25


def test_guess_finds_the_number_greedily_and_mostly_does_not_when_sampled() -> None:
    base = accuracy("guess", Guess())
    assert 0.3 < base.sampled < 0.45
    assert base.greedy > 0.6
    assert base.mixed_groups > 0.8


def test_revise_attempts_revisions_and_repairs_more_than_it_solves() -> None:
    task, policy = Steps(), load_policy("steps-revise", device=CPU, dtype="float32")
    problems = task.problems(128, split="held-out", seed=22)
    first = sample(
        policy, [policy.encode(problem.prompt) for problem in problems], SamplingParams(group_size=2, max_new_tokens=48, seed=1)
    ).rollouts
    score = grade_rollouts(policy, task, problems, first).view(-1, 2)
    texts = [policy.decode(first.tokens[row][first.mask[row]].tolist()) for row in range(256)]
    failed = [index for index in range(128) if score[index, 0] == 0]
    prompts = [policy.encode(task.revise(problems[index], texts[2 * index], texts[2 * index + 1])) for index in failed]
    revised = sample(policy, prompts, SamplingParams(group_size=1, max_new_tokens=48, seed=3)).rollouts
    repaired = grade_rollouts(policy, task, [problems[index] for index in failed], revised)
    assert float(repaired.mean()) > float(score.mean()) + 0.15


@pytest.mark.parametrize("name", ["steps-shift", "cotadd"])
def test_a_base_round_trips_through_text(name: str) -> None:
    policy = load_policy(name, device=CPU, dtype="float32")
    text = "12+34="
    assert policy.decode(policy.encode(text)) == text
    assert policy.decode([*policy.encode(text), *policy.end_tokens]) == text

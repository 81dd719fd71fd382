"""Held-out accuracy: counted by hand, and the same in one piece as in many."""

import pytest
import torch

from engine.runs import small_config
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.sampler import sample
from tokencredit.tasks import Steps
from tokencredit.trainer import evaluate as module
from tokencredit.trainer.evaluate import evaluate


def test_accuracy_is_counted_over_problems_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    task, policy = Steps(), load_policy(small_config().model, device=torch.device("cpu"), dtype="float32")
    problems = task.problems(20, split="held-out", seed=1)
    whole = evaluate(policy, task, problems, SamplingParams(group_size=4, max_new_tokens=48, seed=3))
    prompts = [policy.encode(problem.prompt) for problem in problems]
    drawn = sample(policy, prompts, SamplingParams(group_size=4, max_new_tokens=48, seed=3)).rollouts
    score = grade_rollouts(policy, task, problems, drawn).view(20, 4).tolist()
    assert whole.sampled == pytest.approx(sum(map(sum, score)) / 80)
    assert whole.pass_at_k == sum(any(row) for row in score) / 20
    assert whole.mixed_groups == sum(0 < sum(row) < 4 for row in score) / 20
    assert (whole.k, whole.problems) == (4, 20)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 12)
    pieces = evaluate(policy, task, problems, SamplingParams(group_size=4, max_new_tokens=48, seed=3))
    assert pieces.greedy == whole.greedy
    assert pieces.problems == 20
    assert 0 < pieces.pass_at_k <= 1

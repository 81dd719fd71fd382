"""Runs whose advantage looks at greedy responses: what they count, whom they compare with whom, one response per prompt, resuming."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from engine.runs import files_of, rows_of, run, small_config, trainer_of
from tokencredit.config.train import TrainConfig
from tokencredit.pipeline.credit import MethodState
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout import extra
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.rollout.generate import generate
from tokencredit.rollout.sampler import sample
from tokencredit.tasks import Problem, Task
from tokencredit.trainer import step
from tokencredit.trainer.loop import step_once
from tokencredit.trainer.step import StepState

LEAN: dict[str, Any] = {
    "recipe": "remax",
    "steps": 2,
    "save_every": 0,
    "tokens_every": 0,
    "evaluation": {"every": 0, "problems": 4, "samples": 1, "final_problems": 4, "final_samples": 1},
}


def lean(**changes: Any) -> TrainConfig:
    return small_config(**{**LEAN, **changes})


def greedy_one_by_one(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> list[float]:
    """Every problem asked alone, and its one response read and graded here."""
    scores = []
    for problem in problems:
        limit = config.sampling.max_new_tokens
        drawn = sample(
            policy, [policy.encode(problem.prompt)], SamplingParams(group_size=1, max_new_tokens=limit, seed=7, greedy=True)
        ).rollouts
        scores.append(task.grade(problem, policy.decode(drawn.tokens[0][drawn.mask[0]].tolist())))
    return scores


class Step(NamedTuple):
    trained: StepState
    evidence: CollectedBatch
    expected: list[float]
    """Greedy score of each problem, found again before the update moved the policy."""


def first_step(config: TrainConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    seen: list[list[float]] = []

    def sample_twice(policy: Policy, task: Task, config: TrainConfig, batch: CollectedBatch, *, seed: int) -> CollectedBatch:
        seen.append(greedy_one_by_one(policy, task, batch.problems, config))
        return extra.sample_extra(policy, task, config, batch, seed=seed)

    monkeypatch.setattr(step, "sample_extra", sample_twice)
    trainer = trainer_of(config)
    trained = step_once(trainer, 0, MethodState())
    assert trained.trained
    assert trained.collected is not None
    return Step(trained, trained.collected, seen[0] if seen else [])


def naive_advantages(score: Tensor, group: Tensor, greedy: list[float]) -> list[float]:
    return [mine - greedy[prompt] for mine, prompt in zip(score.tolist(), group.tolist(), strict=True)]


# --- what is counted


@pytest.mark.parametrize(("prompts", "group_size"), [(24, 1), (6, 4)])
def test_one_greedy_response_per_prompt_is_drawn_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: int, group_size: int
) -> None:
    """With one response per prompt too, which is what the method is made for."""
    drawn: list[tuple[int, int, bool]] = []

    def counting(policy: Policy, task: Task, problems: Sequence[Problem], params: SamplingParams) -> Any:
        drawn.append((len(problems), params.group_size, params.greedy))
        return generate(policy, task, problems, params)

    monkeypatch.setattr(extra, "generate", counting)
    config = lean(sampling={"prompts": prompts, "group_size": group_size})
    result = run(config, tmp_path / "run").result
    rows = rows_of(tmp_path / "run")
    assert drawn == [(prompts, 1, True)] * 2
    assert [row["rollouts_used"] for row in rows] == [24 + prompts, 2 * (24 + prompts)]
    assert result["rollouts_used"] == rows[-1]["rollouts_used"]
    for row in rows:
        assert row["greedy_responses"] == prompts
        assert 0 <= row["greedy_score"] <= 1
        assert prompts * row["greedy_score"] == pytest.approx(round(prompts * row["greedy_score"]), abs=1e-5)
        assert row["grad_norm"] > 0
        assert all(math.isfinite(value) for value in row.values())


def test_nobody_else_pays_for_greedy_responses(tmp_path: Path) -> None:
    run(lean(recipe="rloo", steps=1), tmp_path / "run")
    (row,) = rows_of(tmp_path / "run")
    assert row["rollouts_used"] == 24
    assert not [name for name in row if name.startswith("greedy")]


# --- who is compared with whom


@pytest.mark.parametrize("changes", [{}, {"filter_groups": True}, {"sampling": {"prompts": 24, "group_size": 1}}], ids=str)
def test_a_response_is_compared_with_the_greedy_response_to_its_own_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Dynamic sampling leaves problems out and numbers the groups anew; the greedy scores follow."""
    step = first_step(lean(**changes), tmp_path / "run", monkeypatch)
    scored, group = step.trained.credited.scored, step.trained.credited.rollouts.group
    assert set(step.expected) == {0.0, 1.0}, "prompts must differ in their greedy score, or a mix-up would not show"
    expected = naive_advantages(scored.score, group, step.expected)
    assert step.trained.credited.advantage.tolist() == expected
    assert naive_advantages(scored.score, group, step.expected[1:] + step.expected[:1]) != expected
    assert step.evidence.extra["greedy_responses"] == len(step.expected)
    assert step.evidence.extra["greedy_score"] == pytest.approx(sum(step.expected) / len(step.expected))


def test_a_greedy_response_without_a_grade_leaves_its_prompt_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = extra.greedy_scores

    def one_could_not_be_graded(*given: Any) -> Tensor:
        scores = ask(*given)
        scores[2] = math.nan
        return scores

    monkeypatch.setattr(extra, "greedy_scores", one_could_not_be_graded)
    step = first_step(lean(), tmp_path / "run", monkeypatch)
    credited, (group, score) = step.trained.credited, (step.trained.credited.rollouts.group, step.trained.credited.scored.score)
    expected = naive_advantages(score, group, step.expected)
    assert credited.advantage.tolist() == [0.0 if prompt == 2 else value for value, prompt in zip(expected, group.tolist(), strict=True)]
    assert any(value != 0 for value, prompt in zip(expected, group.tolist(), strict=True) if prompt == 2)
    assert not credited.credit[group == 2].any()
    others = [value for prompt, value in enumerate(step.expected) if prompt != 2]
    assert step.evidence.extra["greedy_score"] == pytest.approx(sum(others) / 5)
    assert step.evidence.extra["greedy_responses"] == 6


def test_greedy_responses_leave_the_sampled_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is the one that another advantage would have been given."""
    step = first_step(lean(), tmp_path / "remax", monkeypatch)
    other = first_step(lean(recipe="rloo"), tmp_path / "rloo", monkeypatch)
    mine, theirs = step.trained.credited.rollouts, other.trained.credited.rollouts
    assert torch.equal(mine.tokens, theirs.tokens)
    assert not torch.equal(step.trained.credited.advantage, other.trained.credited.advantage)


# --- stopping


def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path: Path) -> None:
    config = lean(steps=3, tokens_every=1)
    run(config, tmp_path / "whole")
    assert run(config, tmp_path / "cut", stop_after=1).interrupted
    run(config, tmp_path / "cut", resume=True)
    assert [row["greedy_responses"] for row in rows_of(tmp_path / "whole")] == [6, 6, 6]
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")

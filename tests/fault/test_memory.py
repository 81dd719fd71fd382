"""Out of memory: once more with half, the same gradient, and a clear end when that fails too."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.runs import collected_by, run, small_config, trainer_of, weights
from fault.command import SMALL, main_with
from forked import run_forked
from tiny import CONSTANT, gradient_of, made_up_credit, made_up_rollouts, plan_for, tiny_policy
from tokencredit.analysis.showcase import showcase
from tokencredit.errors import GuardError
from tokencredit.forward import padded
from tokencredit.forward.memory import is_out_of_memory, recut, retry_with_half_budget
from tokencredit.forward.modes import ForwardOptions
from tokencredit.forward.padded import row_cost
from tokencredit.objective import OBJECTIVES
from tokencredit.optim import update
from tokencredit.optim.update import UpdateOptions, accumulate_gradient, run_plan
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.credit import MethodState
from tokencredit.rollout.sampler import sample_plainly
from tokencredit.trainer.failed_batch import _score_again
from tokencredit.trainer.step import StepState

CLIP = AggregatedObjective(OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.28, dual_clip=3.0), "token-mean", CONSTANT)


class Small:
    """A device that can hold so many tokens in a pass and no more."""

    def __init__(self, patch: pytest.MonkeyPatch, limit: int, error: Exception | None = None) -> None:
        self.limit, self.seen = limit, []
        logits = padded.response_logits

        def bounded(model: Any, prompts: Any, tokens: torch.Tensor) -> Any:
            size = len(prompts) * (max(len(prompt) for prompt in prompts) + tokens.shape[1])
            self.seen.append(size)
            if size > self.limit:
                raise error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return logits(model, prompts, tokens)

        patch.setattr(update, "response_logits", bounded)
        patch.setattr(padded, "response_logits", bounded)


def test_half_the_tokens_in_a_pass_leave_the_gradient_as_it_was() -> None:
    policy, credited = tiny_policy(), made_up_credit(made_up_rollouts())
    (step,) = plan_for(credited, max_tokens=200, optimizer_steps=1).steps
    accumulate_gradient(policy, credited, step, CLIP, ForwardOptions(temperature=1.0, dtype="float64"))
    whole = gradient_of(policy).clone()
    policy.model.zero_grad()
    halved = recut(step, row_cost(credited.rollouts), max_tokens=30)
    assert len(halved.micro_batches) > len(step.micro_batches)
    assert sorted(halved.rows) == sorted(step.rows)
    accumulate_gradient(policy, credited, halved, CLIP, ForwardOptions(temperature=1.0, dtype="float64"))
    torch.testing.assert_close(gradient_of(policy), whole, atol=1e-12, rtol=1e-10)


def test_scales_of_credit_follow_their_rows_into_smaller_micro_batches() -> None:
    from dataclasses import replace

    credited = made_up_credit(made_up_rollouts())
    (step,) = plan_for(credited, max_tokens=200, optimizer_steps=1).steps
    step = replace(step, credit_scale=tuple(float(row) for row in step.rows))
    halved = recut(step, row_cost(credited.rollouts)[::-1], max_tokens=60)
    assert halved.rows != step.rows
    assert halved.credit_scale == tuple(float(row) for row in halved.rows)


def test_a_step_that_does_not_fit_is_taken_again_in_halves(tmp_path: Path) -> None:
    config = small_config(steps=2, evaluation={"every": 0}, dtype="float64", scoring="pass", optimizer={"steps_per_batch": 1})
    run(config, tmp_path / "roomy")
    with pytest.MonkeyPatch.context() as patch:
        small = Small(patch, limit=620)
        run(config, tmp_path / "tight")
    assert max(small.seen) > 620
    events = [json.loads(line) for line in (tmp_path / "tight" / "events.jsonl").read_text().splitlines()]
    assert {event["kind"] for event in events} == {"out-of-memory"}
    assert "trying again from its start with" in events[0]["message"]
    assert any("scoring tokens" in event["message"] for event in events)
    assert any("taking optimizer step 1 of 1" in event["message"] for event in events)
    one, two = weights(tmp_path / "roomy"), weights(tmp_path / "tight")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-10, rtol=0)


def test_a_second_failure_stops_with_peak_memory_and_the_longest_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Small(monkeypatch, limit=20)
    with pytest.raises(
        GuardError, match=r"out of memory while taking optimizer step 1 of 2, .* the longest row takes \d+.*peak memory [\d,]+ MiB"
    ):
        run(small_config(), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints" / "step-000001").exists()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [(event["step"], event["kind"]) for event in events] == [(1, "out-of-memory"), (1, "stopped")]


def test_nothing_of_the_failed_try_is_left_in_the_gradient() -> None:
    """The first micro-batches of the failed try had added theirs; the wrong twin forgets to forget."""
    credited = made_up_credit(made_up_rollouts())
    plan = plan_for(credited, max_tokens=60, optimizer_steps=1)
    assert len(plan.steps[0].micro_batches) > 1
    options = UpdateOptions(ForwardOptions(temperature=1.0, dtype="float64"), gradient_clip=1e9)

    def trained(*, forgetful: bool, fails: bool) -> torch.Tensor:
        learner, calls = tiny_policy(), [0]
        optimizer = torch.optim.SGD(learner.model.parameters(), lr=0.1)
        with pytest.MonkeyPatch.context() as patch:
            logp = update._logp

            def failing(*given: Any) -> Any:
                calls[0] += 1
                if fails and calls[0] == 2:
                    raise torch.OutOfMemoryError("made up")
                return logp(*given)

            patch.setattr(update, "_logp", failing)
            if forgetful:
                patch.setattr(optimizer, "zero_grad", lambda set_to_none=True: None)
            run_plan(learner, credited, plan, CLIP, optimizer, options)
        return torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])

    right = trained(forgetful=False, fails=False)
    torch.testing.assert_close(trained(forgetful=False, fails=True), right, atol=1e-12, rtol=0)
    assert not torch.allclose(trained(forgetful=True, fails=True), right, atol=1e-6)


def test_what_the_sampler_keeps_is_given_back_before_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []

    class Keeping:
        def sample(self, *given: Any, **named: Any) -> Any:
            raise AssertionError("nothing is sampled here")

        def release(self) -> None:
            released.append("released")

    Small(monkeypatch, limit=200)
    credited = made_up_credit(made_up_rollouts())
    learner = replace(tiny_policy(), sampler=Keeping())
    optimizer = torch.optim.SGD(learner.model.parameters(), lr=0.1)
    options = UpdateOptions(ForwardOptions(temperature=1.0, dtype="float64"), gradient_clip=1e9)
    run_plan(learner, credited, plan_for(credited, max_tokens=20, optimizer_steps=1), CLIP, optimizer, options)
    assert not released
    Small(monkeypatch, limit=45)
    run_plan(learner, credited, plan_for(credited, max_tokens=60, optimizer_steps=1), CLIP, optimizer, options)
    assert released == ["released"]


@pytest.mark.parametrize("dies", ["showing", "replaying"])
def test_whoever_scores_gives_back_first_what_the_sampler_keeps(dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []

    class Keeping:
        def sample(self, *given: Any, **named: Any) -> Any:
            return sample_plainly(*given, **named)

        def release(self) -> None:
            released.append(dies)

    config = small_config(scoring="pass", dtype="float64", optimizer={"steps_per_batch": 2})
    trainer = trainer_of(config)
    trainer.policy = replace(trainer.policy, sampler=Keeping())
    gathered = collected_by(trainer, 0)
    assert not released
    small = Small(monkeypatch, limit=1500 if dies == "showing" else 620)
    if dies == "showing":
        assert showcase(config, trainer.policy, trainer.task, MethodState(), problems=16)
    else:
        assert "finite log-probs for every response" in _score_again(trainer, StepState(number=0, collected=gathered))
    assert max(small.seen) > small.limit
    assert released == [dies]


def test_a_failure_while_sampling_ends_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.rollout import collect

    def too_large(*given: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 18.00 MiB")

    monkeypatch.setattr(collect, "generate", too_large)
    with pytest.raises(GuardError, match=r"out of memory while sampling.* peak memory [\d,]+ MiB.*lower sampling\.prompts"):
        run(small_config(), tmp_path / "run")


def test_what_is_and_what_is_not_running_out_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("shape '[2]' is invalid"))
    assert not is_out_of_memory(GuardError("out of memory while scoring tokens, also with 20 tokens in a pass")), "it has been told"
    with pytest.raises(RuntimeError, match="shape"):
        retry_with_half_budget(fails_otherwise, budget=8, longest=2, doing="x", notify=print, free_memory=lambda: None)


def fails_otherwise(tokens: int) -> int:
    raise RuntimeError("shape '[2]' is invalid")


def _train_in_little_memory() -> None:
    import resource

    from tokencredit.trainer.step import PolicyTrainer

    update = PolicyTrainer.update

    def limited(self: PolicyTrainer, *given: Any, **named: Any) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**21, resource.RLIM_INFINITY))
        update(self, *given, **named)

    PolicyTrainer.update = limited  # pyright: ignore[reportAttributeAccessIssue]
    main_with("train", "--out", "run", *SMALL, "--sampling.prompts", "64", "--sampling.group-size", "8")


def test_a_real_limit_of_memory_ends_in_words(tmp_path: Path) -> None:
    """The kernel refuses memory to the process: exit code 3 and the two numbers, no traceback."""
    done = run_forked(_train_in_little_memory, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "out of memory while taking optimizer step 1 of 2" in done.stderr
    assert "Traceback" not in done.stderr

"""Dynamic sampling: only groups with a spread, bounded rounds, every rollout counted, and an honest end when there is none."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest
import torch

import tokencredit.rollout.collect as collect_module
from engine.runs import small_config, trainer_of
from tiny import made_up_rollouts, tiny_policy
from tokencredit.config.train import TrainConfig
from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.grade.protocol import Verdict
from tokencredit.masked import group_statistics
from tokencredit.pipeline.credit import MethodState
from tokencredit.rollout.collect import CollectedBatch, collect_rollouts, score_while_grading
from tokencredit.rollout.grading import response_text
from tokencredit.rollout.scoring import check_budget, credit_pipeline, keeps_hidden_while_sampling
from tokencredit.tasks import BatchGrading, Problem, Steps
from tokencredit.timing import Stopwatch
from tokencredit.trainer.loop import step_once
from tokencredit.trainer.signals import StopTraining
from tokencredit.types import Rollouts, TokenScores


@dataclass(frozen=True)
class Picky(Steps):
    """Right iff the response starts with a character above `bar`: a random policy gives mixed, dead and ungraded groups."""

    bar: str = "5"

    def grade(self, problem: Problem, response: str) -> float:
        if response.startswith("0"):
            return float("nan")
        return float(response[:1] > self.bar)


def collected(config: TrainConfig, task: Steps) -> CollectedBatch:
    return collect_rollouts(tiny_policy(torch.float32), task, config, step=3, watch=Stopwatch(), keep_hidden=True)


def filtered(**changes: object) -> TrainConfig:
    return small_config(filter_groups=True, sampling={"prompts": 6, "group_size": 3, "max_new_tokens": 6}, **changes)


def test_without_the_filter_every_group_is_kept() -> None:
    batch = collected(small_config(sampling={"prompts": 6, "group_size": 3, "max_new_tokens": 6}), Picky())
    assert len(batch.problems) == 6
    assert batch.rollouts_used == 18
    assert (group_statistics(batch.score, batch.rollouts.group).std == 0).any()


def test_kept_groups_differ_inside_and_rows_still_answer_their_prompts() -> None:
    task, policy = Picky(), tiny_policy(torch.float32)
    batch = collected(filtered(filter_retries=8), task)
    assert len(batch.problems) == 6
    assert batch.rollouts_used > 18
    assert (group_statistics(batch.score, batch.rollouts.group).std > 0).all()
    assert sorted(set(batch.rollouts.group.tolist())) == list(range(6))
    for row, group in enumerate(batch.rollouts.group.tolist()):
        problem = batch.problems[group]
        assert list(batch.rollouts.prompts[row]) == policy.encode(problem.prompt)
        expected = task.grade(problem, response_text(policy, batch.rollouts, row))
        assert float(batch.score[row]) == pytest.approx(expected, nan_ok=True)
    inside = batch.rollouts.mask
    torch.testing.assert_close(batch.evidence.logp[inside], batch.rollouts.behavior_logp[inside])
    assert batch.evidence.hidden is not None
    assert batch.evidence.hidden.shape[:2] == inside.shape


def test_rounds_are_bounded_and_ask_only_for_what_is_missing() -> None:
    none, one = (collected(filtered(filter_retries=retries), Picky()) for retries in (0, 1))
    found_at_once = len(none.problems)
    assert 0 < found_at_once < 6
    assert none.rollouts_used == 18
    assert one.rollouts_used == 18 + 3 * (6 - found_at_once)
    assert len(one.problems) >= found_at_once
    assert one.problems[:found_at_once] == none.problems


def test_a_batch_without_any_spread_makes_no_update(tmp_path: Path) -> None:
    config = filtered(filter_retries=2)
    trainer = trainer_of(config)
    trainer.task = Picky(bar="z")
    before = {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}
    finished = step_once(trainer, 0, MethodState())
    assert not finished.trained
    assert finished.collected.rollouts_used == 3 * 18
    assert all(torch.equal(value, before[name]) for name, value in trainer.policy.model.state_dict().items())


def test_fewer_groups_than_optimizer_steps_make_fewer_steps(tmp_path: Path) -> None:
    config = filtered(filter_retries=0, batching={"type": "query-preserved"}, optimizer={"steps_per_batch": 6})
    trainer = trainer_of(config)
    trainer.policy, trainer.task = tiny_policy(torch.float32), Picky()
    finished = step_once(trainer, 3, MethodState())
    assert finished.trained
    groups = len(set(finished.credited.rollouts.group.tolist()))
    assert groups < 6
    assert [step.prompts for step in finished.plan.steps] == [1] * groups


def test_ungraded_responses_carry_no_credit_and_are_counted(tmp_path: Path) -> None:
    from tokencredit.pipeline.metrics import step_metrics

    config = small_config(sampling={"prompts": 12, "group_size": 4, "max_new_tokens": 6}, advantage={"preset": "verl"})
    trainer = trainer_of(config)
    trainer.policy, trainer.task = tiny_policy(torch.float32), Picky()
    trained = step_once(trainer, 0, MethodState())
    assert trained.trained
    ungraded = trained.credited.scored.score.isnan()
    assert ungraded.any()
    assert not trained.credited.credit[ungraded].any()
    assert trained.credited.credit[~ungraded].any()
    assert step_metrics(trained.credited, trained.plan, trained.result)["ungraded"] == int(ungraded.sum())


def test_a_response_beyond_the_token_budget_is_named_with_the_setting() -> None:
    """Held-out prompts are checked at the start; a longer training prompt is met only when it is drawn."""
    config = small_config(optimizer={"max_tokens": 49})
    check_budget(config, made_up_rollouts(width=40))
    with pytest.raises(
        ConfigError, match=r"optimizer.max_tokens is 49 but a response with its prompt takes 6\d tokens; give at least that"
    ):
        check_budget(config, made_up_rollouts(width=60))


@pytest.mark.parametrize(("scoring", "kept"), [("sampler", True), ("pass", False)])
def test_hidden_states_are_kept_once(scoring: str, kept: bool) -> None:
    for recipe, keeps in (("delta", kept), ("dapo", False)):
        config = small_config(scoring=scoring, recipe=recipe)
        assert keeps_hidden_while_sampling(config, credit_pipeline(config)) is keeps


@dataclass(frozen=True, kw_only=True)
class Waiting(Picky):
    """Grades all at once, and only after tokens are being scored: would wait in vain if one came after the other."""

    scoring: Event

    def grade_all(self, asked: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        assert self.scoring.wait(20)
        return [Verdict(self.grade(problem, response)) for problem, response in asked]


def test_on_a_gpu_tokens_are_scored_while_child_processes_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(sampling={"prompts": 6, "group_size": 3, "max_new_tokens": 6})
    policy, scoring, watch = tiny_policy(torch.float32), Event(), Stopwatch()

    def score(rollouts: Rollouts) -> TokenScores:
        scoring.set()
        return score_rows(policy.model, rollouts, temperature=1.0, max_tokens=500, keep_hidden=True)

    monkeypatch.setattr(collect_module, "_can_score_while_grading", lambda policy, task: isinstance(task, BatchGrading))
    both = collect_rollouts(policy, Waiting(scoring=scoring), config, step=3, watch=watch, keep_hidden=False, score=score)
    one_by_one = collected(config, Picky())
    assert both.scored
    assert not one_by_one.scored
    assert torch.equal(both.rollouts.tokens, one_by_one.rollouts.tokens)
    assert torch.equal(both.score.nan_to_num(9.0), one_by_one.score.nan_to_num(9.0))
    assert torch.allclose(both.evidence.logp, one_by_one.evidence.logp, atol=1e-5)
    assert both.evidence.hidden is not None
    assert list(watch.seconds) == ["sample", "grade", "score"]
    alone = collect_rollouts(policy, Picky(), config, step=3, watch=Stopwatch(), keep_hidden=False, score=score)
    assert not alone.scored


def test_what_scoring_raises_is_raised_and_a_stop_waits_for_it() -> None:
    ended: list[str] = []

    def fails() -> None:
        time.sleep(0.05)
        ended.append("scored")
        raise BadNumbersError("log-probs", "broken", [0])

    with pytest.raises(BadNumbersError, match="broken"), score_while_grading(fails) as scoring:
        scoring.result()
    with pytest.raises(StopTraining), score_while_grading(fails):
        raise StopTraining
    assert ended == ["scored", "scored"]

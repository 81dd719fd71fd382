"""Whole runs of methods that sample more, remember, leave rows out or correct: what they count, record, resume and refuse."""

import json
import math
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.runs import files_of, newest, rows_of, run, small_config, trainer_of, weights
from tokencredit.analysis.showcase import showcase
from tokencredit.commands.flags import parse_train
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.pipeline.credit import MethodState
from tokencredit.pipeline.metrics import step_metrics
from tokencredit.rollout import branching, collect, revision
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.rollout.scoring import needs_scoring_pass
from tokencredit.storage.manifest import write_manifest
from tokencredit.trainer.loop import step_once
from tokencredit.trainer.step import StepState

LEAN: dict[str, Any] = {
    "steps": 2,
    "save_every": 0,
    "tokens_every": 0,
    "evaluation": {"every": 0, "problems": 4, "samples": 1, "final_problems": 4, "final_samples": 1},
}
RECIPES: dict[str, dict[str, Any]] = {
    "ibpo": {"recipe": "ibpo"},
    "ibpo-mask": {"recipe": "ibpo-mask", "shape": {"references": 1}},
    "vineppo": {"recipe": "vineppo", "credit": {"continuations": 2, "budget": 31}},
    "vineppo without a budget": {"recipe": "vineppo", "credit": {"continuations": 1}},
    "fade": {"recipe": "fade"},
    "c-rf": {"recipe": "c-rf", "sampling": {"prompts": 24, "group_size": 1}},
    "cancellation": {"recipe": "cancellation"},
}
ONE_SIDED_NOW_AND_THEN: dict[str, Any] = {
    "recipe": "c-rf",
    "sampling": {"prompts": 2, "group_size": 2},
    "optimizer": {"steps_per_batch": 1},
    "batching": {"type": "reward-balanced", "method": "subsample"},
}
"""Two prompts with two responses each: often none of them has both a right and a wrong one, and balance keeps nobody."""


def lean(**changes: Any) -> TrainConfig:
    return small_config(**{**LEAN, **changes})


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


def one_step(config: TrainConfig) -> tuple[StepState, CollectedBatch]:
    """The first training step, and its rollouts with the evidence that was sampled for it."""
    batch = step_once(trainer_of(config), 0, MethodState())
    assert batch.trained
    assert batch.collected is not None
    return batch, batch.collected


# --- what is counted


@pytest.mark.parametrize("name", RECIPES)
def test_every_response_that_was_sampled_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    drawn: Counter[str] = Counter()

    def count_draws(module: ModuleType, name: str) -> None:
        draw = getattr(module, name)

        def counting(*given: Any) -> Any:
            *_, asked, params = given
            drawn[module.__name__.rsplit(".", 1)[-1]] += len(asked) * params.group_size
            return draw(*given)

        monkeypatch.setattr(module, name, counting)

    for module, name_there in ((collect, "generate"), (revision, "sample"), (branching, "sample")):
        count_draws(module, name_there)
    config = lean(**RECIPES[name])
    result = run(config, tmp_path / "run").result
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    used = [0, *(row["rollouts_used"] for row in rows)]
    for number, row in enumerate(rows):
        assert used[number + 1] - used[number] == 24 + row.get("revisions", 0) + row.get("continuations", 0)
        assert row["grad_norm"] > 0
        assert all(math.isfinite(value) for value in row.values())
    assert drawn == Counter(
        {
            "collect": 48,
            "revision": sum(row.get("revisions", 0) for row in rows),
            "branching": sum(row.get("continuations", 0) for row in rows),
        }
    )
    assert result["rollouts_used"] == used[-1] == drawn.total()
    assert ("revisions" in rows[0]) == name.startswith("ibpo")
    assert ("continuations" in rows[0]) == name.startswith("vineppo")
    if name.startswith("ibpo"):
        failures = [round(24 * (1 - row["score"])) for row in rows]
        references = config.shape.references
        assert [row["revisions"] for row in rows] == [references * count for count in failures]
        assert all(0 < row["revisions_right"] <= row["revisions"] and row["revisions_identical"] == 0 for row in rows)
    if name == "vineppo":
        assert [(row["branch_points"], row["continuations"]) for row in rows] == [(15, 30), (15, 30)]
    if name == "vineppo without a budget":
        assert all(row["branch_points"] == row["continuations"] > 30 for row in rows)


# --- what the evidence does


def test_a_repaired_failure_is_paid_by_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, extra = one_step(lean(recipe="ibpo", shape={"weight": 0.8, "repair_value": 0.25}))
    scored, repaired = trained.credited.scored, extra.sampled.repaired
    assert {0.0} < set(repaired.tolist()) <= {0.0, 0.5, 1.0}
    torch.testing.assert_close(scored.reward.double(), scored.score.double() + 0.2 * repaired, rtol=1e-6, atol=0)
    told = step_metrics(trained.credited, trained.plan, trained.result)
    assert told["reward"] == pytest.approx(told["score"] + 0.2 * float(repaired.mean()))


def test_a_masked_failure_is_blamed_only_where_its_repair_edited_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = lean(recipe="ibpo-mask", shape={"weight": 0.0}, credit={"unchanged": 0.25})
    trained, extra = one_step(config)
    credited, edited = trained.credited, extra.sampled.edited
    mask = credited.rollouts.mask
    assert torch.equal(credited.scored.reward, credited.scored.score)
    assert credited.coefficient is not None
    assert torch.equal(credited.coefficient, torch.where(edited, 1.0, 0.25) * mask)
    repaired = extra.sampled.repaired > 0
    assert (credited.coefficient[repaired] == 0.25).any()
    assert (credited.coefficient[~repaired] == mask[~repaired]).all()


def test_credit_changes_only_where_a_prefix_was_valued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, extra = one_step(lean(recipe="vineppo", credit={"continuations": 3}))
    credited, value = trained.credited, extra.sampled.prefix_value
    assert value is not None
    mask, known = credited.rollouts.mask, ~value.isnan()
    assert int(known.sum()) == extra.extra["branch_points"]
    assert ((3 * value[known]) % 1 == 0).all()
    assert not known[:, 0].any()
    assert not (known & ~mask).any()
    steps = credited.credit.diff(dim=-1) * mask[:, 1:]
    assert steps.any()
    assert not steps[~known[:, 1:]].any()
    # The first step of a response starts at the group's mean score and ends at the first value.
    score, group = credited.scored.score, credited.rollouts.group
    for row in known.any(-1).nonzero()[:, 0].tolist():
        first = float(value[row][known[row]][0])
        assert float(credited.credit[row, 0]) == pytest.approx(first - float(score[group == group[row]].mean()), abs=1e-6)
    assert credited.coefficient is None
    assert "coefficient_mean" not in step_metrics(credited, trained.plan, trained.result)


def test_without_any_value_process_credit_is_the_plain_advantage_to_the_bit(tmp_path: Path) -> None:
    """No response is 48 tokens long, and four siblings have mean scores that float32 holds exactly."""
    run(lean(recipe="vineppo", credit={"boundary": "tokens", "every": 48}), tmp_path / "no values")
    run(lean(recipe="vineppo", credit={"type": "uniform"}), tmp_path / "uniform")
    run(lean(recipe="vineppo", credit={"boundary": "tokens", "every": 8, "continuations": 1}), tmp_path / "values")
    told = [(row["branch_points"], row["continuations"], row["rollouts_used"]) for row in rows_of(tmp_path / "no values")]
    assert told == [(0, 0, 24), (0, 0, 48)]
    assert same(weights(tmp_path / "no values"), weights(tmp_path / "uniform"))
    assert not same(weights(tmp_path / "values"), weights(tmp_path / "uniform"))


@pytest.mark.parametrize("recipe", ["ibpo-mask", "vineppo"])
def test_responses_are_shown_with_the_credit_of_sampled_evidence(tmp_path: Path, recipe: str) -> None:
    config = lean(recipe=recipe, evaluation={**LEAN["evaluation"], "final_problems": 12}, sampling={"prompts": 6, "group_size": 6})
    trainer = trainer_of(config)
    shown = showcase(config, trainer.policy, trainer.task, MethodState())
    assert shown == showcase(config, trainer.policy, trainer.task, MethodState())
    assert [response.score for response in shown] == [1.0, 0.0] * (len(shown) // 2)
    assert shown
    wrong = [set(response.credit) for response in shown if response.score == 0]
    if recipe == "ibpo-mask":
        assert any(len(values) == 2 and max(values) == 0 > min(values) for values in wrong)
        assert all(len(set(response.credit)) == 1 for response in shown if response.score == 1)
    else:
        assert any(len(values) > 2 for values in wrong)


# --- FADE


def test_fade_s_controller_is_seen_and_follows_the_batches(tmp_path: Path) -> None:
    """Its state is worked out again in plain Python from the scores and entropies that the same rows tell."""
    choice = {"target_entropy": 0.7, "delta_min": 0.4, "ema_new_weight": 0.25}
    run(lean(recipe="fade", steps=3, advantage=choice), tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    solved, entropy = 0.5, rows[0]["entropy"]
    for row in rows:
        solved = 0.75 * solved + 0.25 * row["score"]
        entropy = 0.75 * entropy + 0.25 * row["entropy"]
        expected = {
            "solve_rate": solved,
            "entropy": entropy,
            "initial_entropy": rows[0]["entropy"],
            "alpha": min(max(1.5 * (1 - solved) / solved, 1.0), 3.0),
            "delta": min(max(1 + entropy - 0.7, 0.4), 1.0),
        }
        assert {name.removeprefix("advantage/"): row[name] for name in row if name.startswith("advantage/")} == pytest.approx(
            expected, rel=1e-6
        )
        assert 1 < row["advantage/alpha"] < 3
        assert 0.4 < row["advantage/delta"] < 1
    assert len({row["advantage/solve_rate"] for row in rows}) == 3


# --- stopping


RESUMED: dict[str, dict[str, Any]] = {name: RECIPES[name] for name in ("ibpo", "ibpo-mask", "vineppo", "fade")}


@pytest.mark.parametrize("name", RESUMED)
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path: Path, name: str) -> None:
    config = lean(**RESUMED[name], steps=3, tokens_every=1)
    run(config, tmp_path / "whole")
    assert run(config, tmp_path / "cut", stop_after=1).interrupted
    run(config, tmp_path / "cut", resume=True)
    assert len(rows_of(tmp_path / "whole")) == 3
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_resume_that_forgot_what_a_method_remembers_would_be_noticed(tmp_path: Path) -> None:
    config = lean(recipe="fade", steps=3)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop_after=1)
    saved = newest(tmp_path / "cut")
    (saved / "state.json").write_text(json.dumps(json.loads((saved / "state.json").read_text()) | {"stage_state": {}}))
    (saved / "manifest.json").unlink()
    write_manifest(saved)
    run(config, tmp_path / "cut", resume=True)
    assert rows_of(tmp_path / "whole")[1]["advantage/solve_rate"] != rows_of(tmp_path / "cut")[1]["advantage/solve_rate"]
    assert not same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


# --- balance


def from_flags(*flags: str) -> TrainConfig:
    small = ["--sampling.prompts", "6", "--sampling.group-size", "4", "--optimizer.steps-per-batch", "2"]
    few = ["--evaluation.problems", "4", "--evaluation.final-problems", "4", "--evaluation.samples", "1", "--evaluation.final-samples", "1"]
    return parse_train(["--steps", "2", "--evaluation.every", "0", "--tokens-every", "1", *small, *few, *flags]).config


def test_balanced_steps_hold_whole_prompts(tmp_path: Path) -> None:
    run(from_flags("--recipe", "cancellation"), tmp_path / "run")
    for plan in rows_of(tmp_path / "run", "plans.jsonl"):
        assert plan["kind"] == "reward-balanced"
        steps = [[row for micro in step["micro_batches"] for row in micro] for step in plan["steps"]]
        assert sorted(row for rows in steps for row in rows) == list(range(24))
        assert [len({row // 4 for row in rows}) for rows in steps] == [3, 3]
        assert not any("credit_scale" in step for step in plan["steps"])
    assert {row["prompts_per_optimizer_step"] for row in rows_of(tmp_path / "run")} == {3.0}


def test_subsampled_steps_keep_as_many_right_as_wrong_and_say_who_was_left_out(tmp_path: Path) -> None:
    from pyarrow import parquet

    run(from_flags("--recipe", "cancellation", "--batching.method", "subsample"), tmp_path / "run")
    left_out = 0
    for plan, told in zip(rows_of(tmp_path / "run", "plans.jsonl"), rows_of(tmp_path / "run"), strict=True):
        table = parquet.read_table(tmp_path / "run" / "tokens" / f"step-{plan['step']:06}.parquet").to_pydict()
        columns = (table[name] for name in ("row", "advantage", "optimizer_step"))
        side, placed, tokens = {}, {}, Counter[int]()
        for row, advantage, step in zip(*columns, strict=True):
            side[row], placed[row] = (advantage > 0) - (advantage < 0), step
            tokens[row] += 1
        expected = {row: number for number, step in enumerate(plan["steps"]) for micro in step["micro_batches"] for row in micro}
        assert placed == {row: expected.get(row, -1) for row in range(24)}
        for prompt in range(6):
            kept = [side[row] for row in range(4 * prompt, 4 * prompt + 4) if placed[row] >= 0]
            everyone = [side[row] for row in range(4 * prompt, 4 * prompt + 4)]
            assert kept.count(1) == kept.count(-1) == min(everyone.count(1), everyone.count(-1))
            assert kept.count(0) == everyone.count(0)
        assert told["tokens"] == sum(tokens[row] for row in expected)
        left_out += 24 - len(expected)
    assert left_out > 0


def test_reweighted_steps_are_planned_with_scales_and_train_otherwise(tmp_path: Path) -> None:
    run(from_flags("--recipe", "cancellation", "--batching.method", "reweight"), tmp_path / "reweight")
    run(from_flags("--recipe", "cancellation", "--batching.type", "query-preserved"), tmp_path / "plain")
    plans = rows_of(tmp_path / "reweight", "plans.jsonl")
    scales = [step["credit_scale"] for plan in plans for step in plan["steps"] if "credit_scale" in step]
    assert len(scales) >= 2
    for step in (step for plan in plans for step in plan["steps"] if "credit_scale" in step):
        assert len(step["credit_scale"]) == sum(map(len, step["micro_batches"]))
    assert all(min(scale) < 1 < max(scale) for scale in scales)
    first = [rows_of(tmp_path / name, "plans.jsonl")[0]["steps"] for name in ("reweight", "plain")]
    assert [step["micro_batches"] for step in first[0]] == [step["micro_batches"] for step in first[1]]
    assert not same(weights(tmp_path / "reweight"), weights(tmp_path / "plain"))


def test_a_step_with_nothing_left_makes_no_update(tmp_path: Path) -> None:
    trainer = trainer_of(lean(**ONE_SIDED_NOW_AND_THEN, steps=8))
    outcomes: set[bool] = set()
    for number in range(8):
        before = {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}
        finished = step_once(trainer, number, MethodState())
        assert finished.collected.rollouts_used == 4
        assert same(before, trainer.policy.model.state_dict()) == (not finished.trained)
        outcomes.add(not finished.trained)
    assert outcomes == {True, False}


def test_a_run_in_which_steps_have_nothing_left_is_recorded_whole_and_can_be_resumed(tmp_path: Path) -> None:
    config = lean(**ONE_SIDED_NOW_AND_THEN, steps=8)
    run(config, tmp_path / "whole")
    rows = rows_of(tmp_path / "whole")
    assert [(row["step"], row["rollouts_used"]) for row in rows] == [(number, 4 * number) for number in range(1, 9)]
    updated = [row["step"] for row in rows if "loss" in row]
    assert 0 < len(updated) < 8
    assert [plan["step"] for plan in rows_of(tmp_path / "whole", "plans.jsonl")] == updated
    run(config, tmp_path / "cut", stop_after=3)
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


# --- correction


def test_in_float32_sampler_and_scoring_pass_agree_so_that_a_correction_is_one(tmp_path: Path) -> None:
    run(lean(recipe="dapo", correction={"kind": "tis"}), tmp_path / "run")
    for row in rows_of(tmp_path / "run"):
        assert 0 < row["sampling/sampling_logp_difference/mean"] < 1e-5
        told = {name.removeprefix("correction/"): value for name, value in row.items() if name.startswith("correction/")}
        expected = {"ratio_mean": 1.0, "ratio_max": 1.0, "kl": 0.0, "weight_mean": 1.0, "changed_share": 0.0, "effective_share": 1.0}
        assert told == pytest.approx(expected, abs=1e-4)
        assert told["ratio_max"] > 1


def test_a_correction_of_the_sampler_s_own_log_probs_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"correction.kind is 'mis' but scoring 'sampler' .* there is nothing to correct; use scoring 'pass'"
    ):
        small_config(recipe="dapo", scoring="sampler", correction={"kind": "mis"})
    assert needs_scoring_pass(small_config(recipe="dapo", scoring="auto", correction={"kind": "mis"}))
    assert not needs_scoring_pass(small_config(recipe="dapo", scoring="auto"))


def naive_ratios(trained: StepState, level: str) -> torch.Tensor:
    rollouts = trained.credited.rollouts
    gap = torch.where(rollouts.mask, trained.credited.old_logp.double() - rollouts.behavior_logp.double(), 0.0)
    return (gap.sum(-1, keepdim=True).expand_as(gap) if level == "sequence" else gap).exp()


@pytest.mark.parametrize(("level", "cap"), [("token", 1.01), ("sequence", 1.01), ("sequence", 2.0)])
def test_in_bfloat16_the_ratios_of_a_scoring_pass_are_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, cap: float
) -> None:
    config = lean(recipe="dapo", dtype="bfloat16", correction={"kind": "tis", "level": level, "cap": cap})
    trained, _ = one_step(config)
    mask, ratio = trained.credited.rollouts.mask, naive_ratios(trained, level)
    assert trained.credited.correction is not None
    expected = ratio.clamp(max=cap) * mask
    torch.testing.assert_close(trained.credited.correction.double(), expected, rtol=1e-5, atol=0)
    assert not (ratio == 1)[mask].all()
    told = step_metrics(trained.credited, trained.plan, trained.result, correction_level=level)
    assert told["sampling/sampling_logp_difference/mean"] > 0
    assert told["correction/ratio_max"] == pytest.approx(float(ratio[mask].max()), rel=1e-5)
    assert told["correction/ratio_mean"] == pytest.approx(float(ratio[mask].mean()), rel=1e-5)
    assert told["correction/weight_mean"] == pytest.approx(float(expected[mask].mean()), rel=1e-5)
    assert told["correction/changed_share"] == pytest.approx(float((ratio > cap)[mask].double().mean()), abs=1e-9)
    assert (told["correction/changed_share"] > 0) == (cap < 2)


def test_a_run_tells_a_correction_at_the_level_of_its_weights(tmp_path: Path) -> None:
    """At a cap that nothing reaches no weight is changed, although the weights of a response are no token's own ratio."""
    correction = {"kind": "tis", "level": "sequence", "cap": 100.0}
    run(lean(recipe="dapo", dtype="bfloat16", correction=correction), tmp_path / "corrected")
    run(lean(recipe="dapo", dtype="bfloat16"), tmp_path / "plain")
    for row in rows_of(tmp_path / "corrected"):
        assert row["correction/changed_share"] == 0.0
        assert row["correction/ratio_mean"] == row["correction/weight_mean"] != 1.0
    assert not same(weights(tmp_path / "corrected"), weights(tmp_path / "plain"))


# --- refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": "ibpo"}, r"model 'cotadd' has no tokens for revision prompts of task 'cotadd', such as '\d{4}\+\d{4}="),
        ({"recipe": "vineppo"}, r"task 'cotadd' does not mark where steps begin; use credit.boundary 'tokens'"),
    ],
    ids=["revisions", "steps"],
)
def test_a_task_that_cannot_give_the_evidence_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(lean(task={"type": "cotadd"}, **changes), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_task_without_steps_is_branched_by_tokens(tmp_path: Path) -> None:
    credit = {"boundary": "tokens", "every": 3, "continuations": 2, "budget": 20}
    run(lean(task={"type": "cotadd"}, recipe="vineppo", credit=credit), tmp_path / "run")
    assert all(0 < row["continuations"] <= 20 and row["grad_norm"] > 0 for row in rows_of(tmp_path / "run"))


SINGLES = {"prompts": 24, "group_size": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recipe": "ibpo"}, "advantage 'grpo' compares siblings"),
        ({"recipe": "reinforce++", "shape": {"type": "ibpo"}}, "shape 'ibpo' corrects a response by a sibling"),
        ({"recipe": "ktae"}, "advantage 'grpo' compares siblings"),
        ({"recipe": "c-rf", "credit": {"type": "ktae"}}, "credit 'ktae' compares the token ids of siblings"),
        ({"recipe": "c-rf", "filter_groups": True}, "filter_groups looks for groups whose scores differ"),
        ({"recipe": "vineppo"}, "advantage 'dr-grpo' compares siblings"),
        (
            {"recipe": "c-rf", "batching": {"type": "reward-balanced", "method": "subsample"}},
            "batching 'reward-balanced' keeps as many right as wrong responses of each prompt .*'subsample'.*",
        ),
    ],
    ids=str,
)
def test_one_response_per_prompt_is_refused_where_siblings_are_needed(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"sampling.group_size is 1 but {reason}; give a group size of at least 2"):
        small_config(sampling=SINGLES, **changes)
    assert small_config(sampling={**SINGLES, "group_size": 2}, **changes).sampling.group_size == 2


@pytest.mark.parametrize("recipe", ["c-rf", "ntf"])
def test_one_response_per_prompt_teaches_where_none_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    trained, _ = one_step(lean(recipe=recipe, sampling=SINGLES))
    advantage, right = trained.credited.advantage, trained.credited.scored.score > 0
    assert 0 < int(right.sum()) < 24
    # Both sides of the batch weigh the same.
    assert float(advantage[right].sum()) == pytest.approx(12.0, rel=1e-6)
    assert float(advantage[~right].sum()) == pytest.approx(-12.0, rel=1e-6)
    assert min(trained.result.gradient_norm) > 0

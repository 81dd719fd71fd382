"""Corners of what docs/reliability.md promises: each was once a hole."""

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.runs import files_of, newest, rows_of, run, small_config
from fault.command import SMALL, tokencredit
from fault.interrupting import interrupted_at, optimizer_class
from tokencredit.analysis.replay import recreate
from tokencredit.config.train import TrainConfig
from tokencredit.errors import BadNumbersError, GuardError
from tokencredit.models import model_folder
from tokencredit.pipeline.credit import MethodState
from tokencredit.storage.checkpoints import CheckpointPosition, best_model, checkpoints_in
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks.steps import Steps
from tokencredit.trainer.run import Run
from tokencredit.trainer.step import PolicyTrainer, StepState


def lean(**changes: Any) -> TrainConfig:
    return small_config(**{"steps": 3, "save_every": 0, "evaluation": {"every": 0}, **changes})


def stored_in_bfloat16(folder: Path) -> Path:
    base = model_folder("steps-shift")
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["float64", "weights in bfloat16"])
def test_weights_round_the_same_wherever_they_were_loaded_from(tmp_path: Path, kind: str) -> None:
    changes = {"dtype": "float64"} if kind == "float64" else {"model": str(stored_in_bfloat16(tmp_path / "model"))}
    config = lean(**changes, scoring="pass")
    run(config, tmp_path / "whole")
    interrupted_at(optimizer_class(), "step", 3, config, tmp_path / "cut")
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


@pytest.mark.parametrize(("owner", "name", "calls"), [(PolicyTrainer, "plan", 2), (Run, "evaluate", 2)])
def test_generators_are_kept_as_they_were_before_what_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int
) -> None:
    """Grading draws from a global generator; a stop after grading throws the batch away, and must give its draws back."""
    grade = Steps.grade
    monkeypatch.setattr(Steps, "grade", lambda self, problem, text: float(grade(self, problem, text) or random.random() < 0.3))
    config = lean(evaluation={"every": 1})
    run(config, tmp_path / "whole")
    interrupted_at(owner, name, calls, config, tmp_path / "cut")
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def refusing_from(number: int) -> Any:
    credit = PolicyTrainer.credit

    def bad(self: PolicyTrainer, batch: StepState, methods: MethodState) -> None:
        if batch.number >= number:
            raise BadNumbersError("credit", "made up", [1])
        credit(self, batch, methods)

    return bad


def test_refused_steps_do_not_push_the_good_checkpoints_out(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyTrainer, "credit", refusing_from(2))
        with pytest.raises(GuardError):
            run(lean(steps=9, save_every=1), tmp_path / "run")
    assert [place for place, _ in checkpoints_in(tmp_path / "run" / "checkpoints")] == [CheckpointPosition(1), CheckpointPosition(2)]


def test_weights_that_are_not_finite_are_never_published(tmp_path: Path) -> None:
    step, taken = torch.optim.AdamW.step, [0]

    def spoiling(self: Any, *given: Any) -> Any:
        taken[0] += 1
        done = step(self, *given)
        if taken[0] == 4:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.nan)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", spoiling)
        with pytest.raises(GuardError, match="weights are not finite, so they are not saved"):
            run(lean(steps=5, save_every=1), tmp_path / "run")
    assert newest(tmp_path / "run").name == "step-000001"
    assert damage(newest(tmp_path / "run")) is None


@pytest.mark.parametrize("recipe", ["vineppo", "ibpo"])
def test_the_share_that_could_not_be_graded_is_one_of_the_responses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    count = [0]
    grade = Steps.grade

    def every_second(self: Steps, problem: Any, text: str) -> float:
        count[0] += 1
        return math.nan if count[0] % 2 else grade(self, problem, text)

    monkeypatch.setattr(Steps, "grade", every_second)
    with pytest.raises(GuardError, match=r"50\.0 % of the responses could not be graded"):
        run(lean(recipe=recipe), tmp_path / "run")


def test_a_dump_just_written_is_never_the_one_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guards = tmp_path / "run" / "guards"
    create = RunDir.create

    def with_old_dumps(self: RunDir, *given: Any) -> None:
        create(self, *given)
        for step in (50, 51, 52):
            (guards / CheckpointPosition(step).name).mkdir(parents=True)

    monkeypatch.setattr(RunDir, "create", with_old_dumps)
    monkeypatch.setattr(PolicyTrainer, "credit", refusing_from(1))
    run(lean(steps=2), tmp_path / "run")
    assert (guards / "step-000002").is_dir()
    assert len(list(guards.iterdir())) == 3
    RunDir(tmp_path / "run").truncate_after(10)
    assert [path.name for path in guards.iterdir()] == ["step-000002"]


def test_what_a_message_advises_may_be_changed(tmp_path: Path) -> None:
    run(lean(), tmp_path / "run", stop_after=1)
    flags = ["--optimizer.max-tokens", "4096", "--diagnose.every", "3"]
    done = tokencredit("train", "--resume", "run", *flags, "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows_of(tmp_path / "run", "resumes.jsonl")[0]["changed"] == {"diagnose.every": [0, 3], "optimizer.max_tokens": [8192, 4096]}


def test_a_look_after_a_stop_inside_the_batch_is_left_out(tmp_path: Path) -> None:
    config = lean()
    interrupted_at(optimizer_class(), "step", 5, config, tmp_path / "run")
    run(lean(diagnose={"every": 1}), tmp_path / "run", resume=True)
    assert [step for step, _ in RunDir(tmp_path / "run").step_files("findings")] == []
    assert len(rows_of(tmp_path / "run", "metrics.jsonl")) == 3


def test_a_run_as_the_model_means_the_checkpoint_it_meant_at_first(tmp_path: Path) -> None:
    run(lean(steps=2), tmp_path / "base")
    done = tokencredit("train", "--model", "base", "--out", "run", "--steps", "2", "--kl.beta", "0.1", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'model = "{tmp_path}/base/checkpoints/step-000002"' in (tmp_path / "run" / "config.toml").read_text()


def test_a_look_changes_nothing_when_a_later_optimizer_step_is_bad(tmp_path: Path) -> None:
    from tokencredit.optim import update

    original = update.accumulate_gradient

    def bad_second(policy: Any, credited: Any, step: Any, *given: Any, **named: Any) -> Any:
        found = original(policy, credited, step, *given, **named)
        if step is second[0]:
            raise BadNumbersError("loss", "made up", [1])
        return found

    second: list[Any] = [None]
    take = PolicyTrainer.update

    def marking(self: PolicyTrainer, batch: StepState, **named: Any) -> None:
        second[0] = batch.plan.steps[1] if batch.number == 1 and batch.plan is not None else None
        take(self, batch, **named)

    for name, every in (("plain", 0), ("looked", 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PolicyTrainer, "update", marking)
            patch.setattr(update, "accumulate_gradient", bad_second)
            patch.setattr("tokencredit.optim.microscope.accumulate_gradient", bad_second)
            run(lean(steps=2, diagnose={"every": every}), tmp_path / name)
    assert [path.name for path in (tmp_path / "looked" / "guards").iterdir()] == ["step-000002-1"]
    one, two = (files_of(tmp_path / name)["checkpoints/step-000002/model.safetensors"] for name in ("plain", "looked"))
    assert one == two


def test_an_infinite_reward_is_refused_under_dynamic_sampling_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "grade", lambda self, problem, text: math.inf if text.startswith("a") else 0.0)
    with pytest.raises(GuardError, match="3 training steps in a row were refused"):
        run(lean(recipe="dapo-dynamic", steps=5), tmp_path / "run")
    assert rows_of(tmp_path / "run", "events.jsonl")[0]["stage"] == "rewards"


def test_a_result_is_retired_whenever_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the configuration was changed and before anything else: the old result must not pass for the new one."""
    run(lean(steps=2), tmp_path / "run")
    RunDir(tmp_path / "run").write_config((tmp_path / "run" / "config.toml").read_text().replace("steps = 2\n", "steps = 3\n", 1))
    run(lean(steps=3), tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "result-000002.json").read_text())["steps"] == 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 3


def test_a_finished_run_that_is_resumed_all_the_same_keeps_its_result(tmp_path: Path) -> None:
    """Killed after the result was written and before it could say so."""
    run(lean(steps=2), tmp_path / "run")
    run(lean(steps=2), tmp_path / "run", resume=True)
    assert [path.name for path in (tmp_path / "run").glob("result*.json")] == ["result.json"]


def test_a_step_after_a_refused_one_and_after_more_steps_is_taken_again_as_it_was(tmp_path: Path) -> None:
    credit = PolicyTrainer.credit

    def second_is_bad(self: PolicyTrainer, batch: StepState, methods: MethodState) -> None:
        if batch.number == 1:
            raise BadNumbersError("credit", "made up", [1])
        credit(self, batch, methods)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyTrainer, "credit", second_is_bad)
        run(lean(steps=4), tmp_path / "run")
    config = lean(steps=8)
    run(config, tmp_path / "run", resume=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    again = recreate(RunDir(tmp_path / "run"), config, 7)
    assert again.same_plan is True
    logged = rows_of(tmp_path / "run", "metrics.jsonl")[6]
    assert sum(again.batch.result.loss) / 2 == logged["loss"]


def test_a_gradient_that_is_bad_where_memory_is_short_is_refused_not_run_out_of(tmp_path: Path) -> None:
    from fault.test_memory import Small
    from tokencredit.optim import update

    with pytest.MonkeyPatch.context() as patch:
        Small(patch, limit=620)
        patch.setattr(update.torch.nn.utils, "clip_grad_norm_", lambda *given: torch.tensor(math.inf))
        with pytest.raises(GuardError, match="3 training steps in a row were refused"):
            run(lean(steps=5, optimizer={"steps_per_batch": 1}), tmp_path / "run")
    assert {event["kind"] for event in rows_of(tmp_path / "run", "events.jsonl")} == {"out-of-memory", "guard", "stopped"}


def test_the_same_command_with_resume_goes_on(tmp_path: Path) -> None:
    stored_in_bfloat16(tmp_path / "model")
    command = ["train", "--model", "model", "--steps", "2", *SMALL]
    assert tokencredit(*command, "--out", "run", cwd=tmp_path).returncode == 0
    (tmp_path / "run" / "result.json").unlink()
    done = tokencredit(*command, "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "run" / "result.json").write_text('{"steps": "2"}')
    shutil.rmtree(tmp_path / "model")
    done = tokencredit("train", "--resume", "run", "--steps", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = tokencredit("train", "--resume", "run", "--steps", "4", "--out", "other", cwd=tmp_path)
    assert done.returncode == 2
    assert "--resume run continues in its own folder" in done.stderr


def test_a_run_stopped_before_any_evaluation_has_no_best_but_its_newest(tmp_path: Path) -> None:
    interrupted_at(PolicyTrainer, "collect", 1, lean(), tmp_path / "run")
    assert [place for place, _ in checkpoints_in(tmp_path / "run" / "checkpoints")] == [CheckpointPosition(0)]
    run(lean(), tmp_path / "run", resume=True)
    best = best_model(tmp_path / "run")
    assert best is not None
    assert best.name == "step-000003"

"""Numbers that are not finite never reach the weights: the first bad stage is named, the batch is kept, the run stops in time."""

import json
import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.runs import Silent, files_of, newest, rows_of, run, same_weights, small_config, weights
from fault.command import SMALL, main_with, tokencredit
from forked import run_forked
from tokencredit.config.train import TrainConfig
from tokencredit.errors import BadNumbersError, GuardError
from tokencredit.optim import update
from tokencredit.pipeline import credit, guards
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout import collect, sampler
from tokencredit.trainer.failed_batch import replay
from tokencredit.trainer.health import RunHealth
from tokencredit.trainer.loop import train

ROW = 5
"""The response that goes wrong."""


class Poisoned:
    """A function that spoils what it returns at one of its calls."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, spoil: Callable[[Any], Any]) -> None:
        original, left = getattr(owner, name), [call]

        def wrapper(*given: Any, **named: Any) -> Any:
            found = original(*given, **named)
            left[0] -= 1
            return spoil(found) if left[0] == 0 else found

        patch.setattr(owner, name, wrapper)


def with_row(value: torch.Tensor, bad: float) -> torch.Tensor:
    spoiled = value.clone()
    spoiled[ROW] = bad
    return spoiled


def poison_rewards(patch: pytest.MonkeyPatch) -> None:
    Poisoned(patch, collect, "grade_with_reasons", 2, lambda found: found._replace(score=with_row(found.score, math.inf)))


def poison_log_probs(patch: pytest.MonkeyPatch) -> None:
    def spoil(found: Any) -> Any:
        return found._replace(evidence=found.evidence._replace(logp=with_row(found.evidence.logp, math.nan)))

    Poisoned(patch, collect, "generate", 2, spoil)


def poison_credit(patch: pytest.MonkeyPatch) -> None:
    Poisoned(
        patch,
        credit.CreditPipeline,
        "assign",
        2,
        lambda found: found._replace(credit=with_row(found.credit, math.nan)),
    )


def poison_loss(patch: pytest.MonkeyPatch) -> None:
    """At the first optimizer step of the second batch; each step is one micro-batch here."""
    Poisoned(patch, update, "token_kappa", 3, lambda found: found._replace(loss=torch.tensor(math.nan)))


def poison_gradient(patch: pytest.MonkeyPatch) -> None:
    Poisoned(patch, update.torch.nn.utils, "clip_grad_norm_", 3, lambda found: torch.tensor(math.inf))


STAGES = {
    "rewards": poison_rewards,
    "log-probs": poison_log_probs,
    "credit": poison_credit,
    "loss": poison_loss,
    "gradient norm": poison_gradient,
}


def quiet_config(**changes: Any) -> TrainConfig:
    return small_config(**{"steps": 3, "evaluation": {"every": 0}, **changes})


@pytest.mark.parametrize("stage", STAGES)
def test_a_bad_number_at_each_stage_leaves_the_weights_untouched(tmp_path: Path, stage: str) -> None:
    run(quiet_config(steps=1), tmp_path / "one")
    with pytest.MonkeyPatch.context() as patch:
        STAGES[stage](patch)
        run(quiet_config(steps=2), tmp_path / "two")
    assert same_weights(tmp_path / "one", tmp_path / "two"), "the second step was refused, so nothing moved"
    (event,) = rows_of(tmp_path / "two", "events.jsonl")
    assert (event["step"], event["kind"], event["stage"]) == (2, "guard", stage)
    if stage in ("rewards", "log-probs", "credit"):
        assert event["rows"] == [ROW]
    assert ROW in event["rows"] or stage in ("loss", "gradient norm")
    assert event["rows"]
    rows = rows_of(tmp_path / "two", "metrics.jsonl")
    assert [row.get("refused", 0) for row in rows] == [0, 1]
    assert [row["step"] for row in rows_of(tmp_path / "two", "plans.jsonl")] == [1]
    assert (tmp_path / "two" / event["dump"] / "refusal.json").is_file()


@pytest.mark.parametrize("stage", STAGES)
def test_after_a_refused_batch_the_next_one_is_trained_on(tmp_path: Path, stage: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        STAGES[stage](patch)
        run(quiet_config(), tmp_path / "run")
    rows = rows_of(tmp_path / "run", "metrics.jsonl")
    assert [row.get("refused", 0) for row in rows] == [0, 1, 0]
    assert rows[2]["grad_norm"] > 0


def policies_of(patch: pytest.MonkeyPatch) -> list[Any]:
    """Every policy that is loaded from now on."""
    from tokencredit.trainer.step import PolicyTrainer

    loaded: list[Any] = []
    load = PolicyTrainer.__init__

    def keeping(self: Any, *given: Any, **named: Any) -> None:
        load(self, *given, **named)
        loaded.append(self.policy)

    patch.setattr(PolicyTrainer, "__init__", keeping)
    return loaded


@pytest.mark.parametrize("guarded", [True, False])
def test_a_guard_that_looked_after_the_update_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    """The wrong twin: loss and norm are taken for finite, the step is taken, the weights are spoilt."""
    loaded = policies_of(monkeypatch)
    if not guarded:
        monkeypatch.setattr(update.math, "isfinite", lambda value: True)
    Poisoned(monkeypatch, update, "token_kappa", 3, lambda found: found._replace(kappa=torch.full_like(found.kappa, math.nan)))
    with pytest.raises(GuardError) if not guarded else nullcontext():
        run(quiet_config(steps=2), tmp_path / "run")
    assert all(bool(parameter.isfinite().all()) for parameter in loaded[0].model.parameters()) == guarded


def test_optimizer_steps_before_the_bad_one_stay_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Poisoned(monkeypatch, update, "token_kappa", 4, lambda found: found._replace(loss=torch.tensor(math.nan)))
    run(quiet_config(steps=2, recipe="dapo"), tmp_path / "run")
    row = rows_of(tmp_path / "run", "metrics.jsonl")[1]
    assert row["refused"] == 1
    assert row["grad_norm"] > 0
    (event,) = rows_of(tmp_path / "run", "events.jsonl")
    assert "in optimizer step 2 of 2; this step was not taken" in event["message"]
    assert event["dump"] == "guards/step-000002-1"


def test_so_many_refused_steps_in_a_row_stop_the_run_and_the_last_good_state_is_the_newest(tmp_path: Path) -> None:
    from tokencredit.trainer.step import PolicyTrainer

    credit = PolicyTrainer.credit

    def bad_from_third(self: Any, batch: Any, methods: Any) -> None:
        if batch.number >= 2:
            raise BadNumbersError("credit", "made up", [1])
        credit(self, batch, methods)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyTrainer, "credit", bad_from_third)
        with pytest.raises(GuardError, match="the updates of 2 training steps in a row were refused"):
            run(quiet_config(steps=9, guard={"refused_steps": 2}, save_every=2), tmp_path / "run")
    assert newest(tmp_path / "run").name == "step-000002"
    run(quiet_config(steps=9, save_every=2), tmp_path / "whole")
    run(quiet_config(steps=9, guard={"refused_steps": 2}, save_every=2), tmp_path / "run", resume=True)
    written = {name: files_of(tmp_path / name)["metrics.jsonl"] for name in ("run", "whole")}
    assert written["run"] == written["whole"]


def _train_with_infinite_gradients() -> None:
    update.torch.nn.utils.clip_grad_norm_ = lambda *given: torch.tensor(math.inf)  # pyright: ignore[reportAttributeAccessIssue]
    main_with("train", "--out", "run", "--steps", "5", *SMALL)


def test_the_guard_s_exit_code_is_three(tmp_path: Path) -> None:
    done = run_forked(_train_with_infinite_gradients, cwd=tmp_path)
    assert done.returncode == 3
    assert "tokencredit: stopped: the updates of 3 training steps in a row were refused" in done.stderr
    assert "gradient norm is inf from response" in done.stdout
    assert [event["kind"] for event in rows_of(tmp_path / "run", "events.jsonl")] == ["guard", "guard", "guard", "stopped"]


def broken_model(place: Path, spoil: Callable[[torch.Tensor], None]) -> Path:
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")
    with torch.no_grad():
        spoil(policy.model.get_output_embeddings().weight)
    policy.model.save_pretrained(place)
    policy.tokenizer.save_pretrained(place)
    return place


def test_a_policy_of_nan_is_stopped_with_code_three(tmp_path: Path) -> None:
    broken_model(tmp_path / "broken", lambda weight: weight[5].fill_(math.nan))
    done = tokencredit("train", "--model", "broken", "--steps", "1", "--evaluation.every", "0", *SMALL, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "probabilities are not finite" in done.stderr


def test_the_last_three_dumps_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.trainer.step import PolicyTrainer

    def bad(self: Any, batch: Any, methods: Any) -> None:
        raise BadNumbersError("credit", "made up", [1])

    monkeypatch.setattr(PolicyTrainer, "credit", bad)
    run(quiet_config(steps=5, guard={"refused_steps": 9}), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "guards").iterdir()) == ["step-000003", "step-000004", "step-000005"]
    assert len(rows_of(tmp_path / "run", "events.jsonl")) == 5


# --- replay


def test_a_bad_reward_is_bad_again_when_the_dump_is_replayed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        poison_rewards(patch)
        run(quiet_config(steps=2), tmp_path / "run")
    said = tokencredit("replay", "run/guards/step-000002", cwd=tmp_path)
    assert said.returncode == 3, said.stderr
    assert "Replay: stage rewards failed: rewards are not finite in response 5" in said.stdout
    assert "gives finite log-probs for every response" in said.stdout
    assert "Reproduced." in said.stdout


def test_bad_log_probs_are_bad_again_when_replayed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        poison_log_probs(patch)
        run(quiet_config(steps=2), tmp_path / "run")
    found = replay(tmp_path / "run" / "guards" / "step-000002")
    assert found.reproduced
    assert found.again is not None
    assert (found.again.stage, found.again.rows, found.passed) == ("log-probs", (ROW,), ("rewards",))


def test_a_run_that_blows_up_by_itself_is_refused_and_replayed(tmp_path: Path) -> None:
    """Nothing is made up here: a learning rate without measure makes weights whose gradient overflows."""
    with pytest.raises(GuardError, match="2 training steps in a row"):
        run(quiet_config(steps=9, optimizer={"learning_rate": 1e37}, guard={"refused_steps": 2}), tmp_path / "run")
    event = [event for event in rows_of(tmp_path / "run", "events.jsonl") if event["kind"] == "guard"][-1]
    assert event["stage"] == "gradient norm"
    said = tokencredit("replay", f"run/{event['dump']}", cwd=tmp_path)
    assert said.returncode == 3, said.stdout + said.stderr
    assert "Reproduced." in said.stdout


def test_weights_that_can_sample_no_more_are_replayed_although_there_is_no_batch(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        loaded = policies_of(patch)

        def spoil(done: Any) -> Any:
            with torch.no_grad():
                loaded[0].model.get_output_embeddings().weight.fill_(math.inf)
            return done

        Poisoned(patch, torch.optim.AdamW, "step", 2, spoil)
        with pytest.raises(GuardError, match="2 training steps in a row"):
            run(quiet_config(steps=9, save_every=0, guard={"refused_steps": 2}), tmp_path / "run")
    event = [event for event in rows_of(tmp_path / "run", "events.jsonl") if event["kind"] == "guard"][-1]
    assert event["stage"] == "log-probs"
    assert not (tmp_path / "run" / event["dump"] / "batch.safetensors").exists()
    said = tokencredit("replay", f"run/{event['dump']}", cwd=tmp_path)
    assert said.returncode == 3, said.stderr
    assert "the batch could not even be sampled" in said.stdout
    assert "Reproduced." in said.stdout


@pytest.mark.parametrize("stage", ["credit", "loss", "gradient norm"])
def test_a_fault_that_was_in_neither_weights_nor_batch_is_not_reproduced(tmp_path: Path, stage: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        STAGES[stage](patch)
        run(quiet_config(steps=2), tmp_path / "run")
    before = files_of(tmp_path / "run")
    (dump,) = (tmp_path / "run" / "guards").iterdir()
    found = replay(dump)
    assert not found.reproduced
    assert found.again is None
    assert found.passed == guards.STAGES
    assert files_of(tmp_path / "run") == before


def test_a_replay_takes_the_step_that_the_run_would_have_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fault, the dump's batch and weights lead to the very weights of a run that had none."""
    with pytest.MonkeyPatch.context() as patch:
        poison_loss(patch)
        run(quiet_config(steps=2, recipe="dapo"), tmp_path / "run")
    run(quiet_config(steps=2, recipe="dapo"), tmp_path / "whole")
    from tokencredit.trainer import failed_batch

    kept: list[Any] = []
    trainer = failed_batch.PolicyTrainer

    def keeping(*given: Any, **named: Any) -> Any:
        kept.append(trainer(*given, **named))
        return kept[-1]

    monkeypatch.setattr(failed_batch, "PolicyTrainer", keeping)
    replay(tmp_path / "run" / "guards" / "step-000002")
    state = kept[0].policy.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in weights(tmp_path / "whole").items())


@pytest.mark.parametrize(("poison", "computed"), [(poison_credit, 1), (poison_loss, 0)])
def test_a_replay_keeps_hidden_states_no_longer_than_training_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: Callable[[pytest.MonkeyPatch], None], computed: int
) -> None:
    """They are computed where credit is still to be assigned, and gone when optimizer steps are taken."""
    with pytest.MonkeyPatch.context() as patch:
        poison(patch)
        run(quiet_config(steps=2, recipe="delta"), tmp_path / "run")
    from tokencredit.trainer import step
    from tokencredit.trainer.step import PolicyTrainer

    hidden: list[weakref.ref[torch.Tensor]] = []
    at_the_step: list[bool] = []
    score, update = step.score_tokens, PolicyTrainer.update

    def scoring(*given: Any, **named: Any) -> Any:
        found = score(*given, **named)
        hidden.extend([] if found.hidden is None else [weakref.ref(found.hidden)])
        return found

    def updating(*given: Any, **named: Any) -> None:
        at_the_step.extend(one() is not None for one in hidden)
        update(*given, **named)

    monkeypatch.setattr(step, "score_tokens", scoring)
    monkeypatch.setattr(PolicyTrainer, "update", updating)
    replay(tmp_path / "run" / "guards" / "step-000002")
    assert at_the_step == [False] * computed


def test_a_damaged_dump_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        poison_rewards(patch)
        run(quiet_config(steps=2), tmp_path / "run")
    batch = tmp_path / "run" / "guards" / "step-000002" / "batch.safetensors"
    batch.write_bytes(batch.read_bytes()[:-1])
    for name, words in (("guards/step-000002", "batch.safetensors is not as it was written"), ("none", "there is no such folder")):
        said = tokencredit("replay", f"run/{name}", cwd=tmp_path)
        assert said.returncode == 2
        assert words in said.stderr
    said = tokencredit("replay", "run/checkpoints/step-000002", cwd=tmp_path)
    assert said.returncode == 2
    assert "it holds no refused batch" in said.stderr


# --- no signal, entropy, length, ungraded


def test_a_run_without_any_credit_stops_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.tasks.steps import Steps

    for name, score, words in (("hard", 0.0, "every response is wrong"), ("easy", 1.0, "every response is right")):
        monkeypatch.setattr(Steps, "grade", lambda self, problem, response, score=score: score)
        with pytest.raises(GuardError, match=rf"no token has received any credit for 3 training steps in a row; {words}"):
            run(quiet_config(steps=9, guard={"silent_steps": 3}), tmp_path / name)
        assert newest(tmp_path / name).name == "step-000003"
        assert words in rows_of(tmp_path / name, "events.jsonl")[-1]["message"]
    run(quiet_config(steps=9, guard={"silent_steps": 0}), tmp_path / "easy", resume=True)
    assert len(rows_of(tmp_path / "easy", "metrics.jsonl")) == 9


def row(entropy: float, length: float, cut: float = 0.0) -> dict[str, float]:
    return {"entropy": entropy, "completions/mean_length": length, "completions/clipped_ratio": cut}


def test_warnings_are_said_when_they_begin_to_hold_and_again_after_they_ended() -> None:
    dog, guard = RunHealth(), quiet_config(guard={"entropy_share": 0.1, "length_factor": 3.0, "cut_share": 0.5}).guard
    assert dog.warnings(row(1.0, 10), guard) == []
    assert dog.warnings(row(0.11, 29, 0.5), guard) == []
    assert [said.split(":")[0] for said in dog.warnings(row(0.09, 31), guard)] == ["entropy has collapsed", "responses run away"]
    assert dog.warnings(row(0.05, 40), guard) == []
    dog = RunHealth.from_json(json.loads(json.dumps(dog.to_json())))
    assert dog.warnings(row(0.05, 12, 0.6), guard) == [
        "60 % of responses are cut at the length limit; they cannot end as they would (guard.cut_share)"
    ]
    assert dog.warnings(row(0.05, 40), guard)[0].startswith("responses run away")
    never = replace_guard(guard, entropy_share=0.0, length_factor=0.0, cut_share=1.0)
    assert RunHealth(first={"entropy": 1.0, "completions/mean_length": 1.0}).warnings(row(0.0, 1000, 1.0), never) == []


def replace_guard(guard: Any, **changes: float) -> Any:
    return guard.model_copy(update=changes)


def test_a_warning_is_written_told_and_does_not_stop_the_run(tmp_path: Path) -> None:
    heard: list[tuple[int, str, str]] = []

    class Hearing(Silent):
        def on_event(self, step: int, kind: str, message: str) -> None:
            heard.append((step, kind, message))

    train(quiet_config(steps=2, sampling={"max_new_tokens": 4}), tmp_path / "run", Hearing())
    (event,) = rows_of(tmp_path / "run", "events.jsonl")
    assert event["kind"] == "warning"
    assert "100 % of responses are cut at the length limit" in event["message"]
    assert heard == [(1, "warning", event["message"])]


def test_what_a_reader_must_know_of_a_task_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.tasks.steps import Steps

    monkeypatch.setattr(Steps, "cautions", ("programs run without isolation",), raising=False)
    run(quiet_config(), tmp_path / "run", stop_after=1)
    run(quiet_config(), tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run", "events.jsonl") == [{"step": 0, "kind": "warning", "message": "programs run without isolation"}]


def test_ungraded_answers_are_counted_with_their_reasons_and_too_many_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.tasks.steps import Steps

    grade = Steps.grade

    def choosy(self: Steps, problem: Any, response: str) -> float:
        if "a:" in response:
            raise ValueError("cannot read an a")
        return grade(self, problem, response)

    monkeypatch.setattr(Steps, "grade", choosy)
    with pytest.raises(GuardError, match=r"could not be graded: the grader raised ValueError: cannot read an a \(\d+\); that is more than"):
        run(quiet_config(), tmp_path / "strict")
    assert newest(tmp_path / "strict").name == "step-000000"
    run(quiet_config(guard={"ungraded_share": 1.0}), tmp_path / "lenient")
    events = rows_of(tmp_path / "lenient", "events.jsonl")
    rows = rows_of(tmp_path / "lenient", "metrics.jsonl")
    assert [event["reasons"] for event in events] == [{"the grader raised ValueError: cannot read an a": row["ungraded"]} for row in rows]
    assert all(0.1 < event["share"] < 0.9 for event in events)


# --- the checks themselves


def test_the_first_bad_stage_is_the_one_named() -> None:
    logp, mask = torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.bool)
    score = torch.tensor([0.0, math.nan, 1.0])
    guards.check_scores(score)
    with pytest.raises(BadNumbersError) as found:
        guards.check_scores(torch.tensor([0.0, math.nan, -math.inf]))
    assert (found.value.stage, found.value.rows) == ("rewards", (2,))
    logp[0, 3] = math.nan
    with pytest.raises(BadNumbersError) as found:
        guards.check_log_probs(logp, mask)
    assert (found.value.stage, found.value.rows) == ("log-probs", (0,))
    mask[0, 3] = False
    guards.check_log_probs(logp, mask)
    with pytest.raises(BadNumbersError) as found:
        guards.check_rewards(torch.tensor([math.nan, math.nan, 1.0]), score)
    assert (found.value.stage, found.value.rows) == ("rewards", (0,))


def test_many_bad_responses_are_named_in_brief() -> None:
    with pytest.raises(BadNumbersError, match=r"responses 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"):
        guards.check_scores(torch.full((100,), math.inf))


def test_the_sampler_names_the_responses_it_broke_down_on(tmp_path: Path) -> None:
    broken_model(tmp_path / "broken", lambda weight: weight.fill_(math.inf))
    policy = load_policy(str(tmp_path / "broken"), device=torch.device("cpu"), dtype="float32")
    with pytest.raises(BadNumbersError) as found:
        sampler.sample(policy, [[3, 4]], SamplingParams(group_size=2, max_new_tokens=2, seed=0))
    assert (found.value.stage, found.value.rows) == ("log-probs", (0, 1))


def test_a_plan_survives_the_way_through_json() -> None:
    from tiny import made_up_credit, made_up_rollouts, plan_for
    from tokencredit.types import StepPlan

    plan = plan_for(made_up_credit(made_up_rollouts()))
    assert StepPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    scaled = replace(plan, steps=tuple(replace(step, credit_scale=tuple(0.5 + row for row in step.rows)) for step in plan.steps))
    assert StepPlan.from_json(json.loads(json.dumps(scaled.to_json()))) == scaled

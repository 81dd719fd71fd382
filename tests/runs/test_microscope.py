"""The microscope: its parts sum to what happened, its copy disturbs nothing, and a look ends with the same bits."""

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.runs import files_of, run, same_weights, small_config, trainer_of
from tiny import CONSTANT, gradient_of, made_up_credit, made_up_rollouts, plan_for, tiny_policy
from tokencredit.diagnose import FINDINGS
from tokencredit.errors import GuardError
from tokencredit.forward.modes import ForwardOptions
from tokencredit.forward.padded import response_logits, score_rows
from tokencredit.kernels import token_logp
from tokencredit.objective import OBJECTIVES, with_kl
from tokencredit.optim.microscope import Microscope, MicroscopeConfig, StepEvidence, adamw_part, choose_rows, clip_factor
from tokencredit.optim.update import UpdateOptions, accumulate_gradient, run_plan, step_kappa
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.credit import MethodState
from tokencredit.pipeline.microbatch import step_seed
from tokencredit.trainer.loop import step_once
from tokencredit.types import Credited, StepPlan

CLIP = OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.28, dual_clip=3.0)
OBJECTIVES_UNDER_TEST = {
    "clip": CLIP,
    "clip+kl": with_kl(CLIP, beta=0.3, estimator="k3"),
    "gspo": OBJECTIVES["gspo"](),
    "dfpo": OBJECTIVES["dfpo"](),
}
LENS = MicroscopeConfig(temperature=1.0, max_tokens=60, gradient_clip=0.5, dtype="float64", seed=5, groups=0)


CLOSE = 1e-5
"""Llama takes its norms in float32, whatever the weights are."""


def a_batch() -> tuple[Credited, StepPlan]:
    """Old log-probs are those of the policy, a little off, so that hardly anything is clipped."""
    credited = made_up_credit(made_up_rollouts())
    logp = score_rows(tiny_policy().model, credited.rollouts, temperature=1.0, max_tokens=60).logp
    credited = replace(credited, old_logp=logp + 0.02 * (credited.old_logp + 3))
    return credited, plan_for(credited)


def examined(
    objective: str = "clip", steps_before: int = 0, rate: float = 1e-3, lens: MicroscopeConfig = LENS
) -> tuple[StepEvidence, Microscope]:
    """A look at two optimizer steps, with or without an optimizer that has a past."""
    credited, plan = a_batch()
    policy = tiny_policy()
    built = AggregatedObjective(OBJECTIVES_UNDER_TEST[objective], "token-mean", CONSTANT)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    forward = ForwardOptions(temperature=lens.temperature, dtype=lens.dtype)
    for number in range(steps_before):
        run_plan(policy, credited, plan, built, optimizer, UpdateOptions(forward, lens.gradient_clip, number))
    microscope = Microscope(policy, optimizer, credited, plan, built, lens)
    options = UpdateOptions(forward, lens.gradient_clip, lens.seed)
    run_plan(policy, credited, plan, built, optimizer, options, after_step=microscope.after_optimizer_step)
    return microscope.evidence(), microscope


@pytest.mark.parametrize("objective", OBJECTIVES_UNDER_TEST)
def test_gradients_of_both_sides_and_the_rest_sum_to_the_gradient(objective: str) -> None:
    credited, plan = a_batch()
    built = AggregatedObjective(OBJECTIVES_UNDER_TEST[objective], "sequence-mean", CONSTANT)

    def gradient(only: torch.Tensor | None) -> torch.Tensor:
        policy = tiny_policy()
        accumulate_gradient(policy, credited, plan.steps[0], built, ForwardOptions(temperature=1.0, dtype="float64"), seed=1, only=only)
        return gradient_of(policy)

    whole = gradient(None)
    sides = [gradient(credited.credit > 0), gradient(credited.credit < 0), gradient(credited.credit == 0)]
    assert torch.allclose(sum(sides), whole, atol=CLOSE * float(whole.abs().max()))
    assert all(float(side.norm()) > 0 for side in sides[:2])
    assert (float(sides[2].norm()) > 0) == (objective == "clip+kl")


@pytest.mark.parametrize("objective", OBJECTIVES_UNDER_TEST)
def test_kappa_alone_gives_the_same_gradient(objective: str) -> None:
    """The sum of kappa grad log pi, with kappa found without a model, is what the update accumulates."""
    credited, plan = a_batch()
    built = AggregatedObjective(OBJECTIVES_UNDER_TEST[objective], "token-mean", CONSTANT)
    policy = tiny_policy()
    logp = score_rows(policy.model, credited.rollouts, temperature=1.0, max_tokens=60).logp
    kappa = step_kappa(credited, plan.steps[0], built, logp, seed=3)
    assert not kappa[list(plan.steps[1].rows)].any()
    for row in plan.steps[0].rows:
        tokens = credited.rollouts.tokens[row : row + 1]
        found = token_logp(response_logits(policy.model, [credited.rollouts.prompts[row]], tokens).logits, tokens)
        found.backward(kappa[row : row + 1].to(found))
    by_hand = gradient_of(policy)
    policy.model.zero_grad()
    accumulate_gradient(policy, credited, plan.steps[0], built, ForwardOptions(temperature=1.0, dtype="float64"), seed=3)
    assert torch.allclose(by_hand, gradient_of(policy), atol=CLOSE * float(by_hand.abs().max()))


def test_parts_of_a_fresh_optimizer_s_step_sum_to_the_step() -> None:
    """Without momentum and decay the two sides are all there is."""
    policy = tiny_policy()
    named = dict(policy.model.named_parameters())
    generator = torch.Generator().manual_seed(0)
    parts = [{name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in named.items()} for _ in range(2)]
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    before = {name: value.detach().clone() for name, value in named.items()}
    for name, value in named.items():
        value.grad = parts[0][name] + parts[1][name]
    norm = float(torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 2.0))
    optimizer.step()
    clip = clip_factor(norm, 2.0)
    assert clip < 1
    told = [adamw_part(optimizer, named, part, clip=clip) for part in parts]
    for name, value in named.items():
        change = value.detach() - before[name]
        assert torch.allclose(told[0][name] + told[1][name], change, atol=1e-12)


def test_parts_leave_out_exactly_momentum_and_decay() -> None:
    policy = tiny_policy()
    parameter = policy.model.lm_head.weight
    named = {"head": parameter}
    rate, beta1, decay = 2e-3, 0.9, 0.1
    optimizer = torch.optim.AdamW([parameter], lr=rate, betas=(beta1, 0.95), weight_decay=decay)
    first, second = (torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (1, 2))
    parameter.grad = first
    optimizer.step()
    before, momentum = parameter.detach().clone(), optimizer.state[parameter]["exp_avg"].clone()
    parameter.grad = second
    optimizer.step()
    state = optimizer.state[parameter]
    divisor = (state["exp_avg_sq"] / (1 - 0.95**2)).sqrt() + 1e-8
    rest = -rate * decay * before - rate / (1 - beta1**2) * beta1 * momentum / divisor
    part = adamw_part(optimizer, named, {"head": second}, clip=1.0)["head"]
    assert torch.allclose(part + rest, parameter.detach() - before, atol=1e-12)


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("objective", OBJECTIVES_UNDER_TEST)
def test_a_small_step_does_what_was_predicted(objective: str, steps_before: int) -> None:
    evidence, microscope = examined(objective, steps_before, rate=1e-5)
    inside = microscope.seen.mask
    before = evidence.moved.before.logp
    for predicted, after in ((evidence.effects.first, evidence.logp_first), (evidence.effects.step, evidence.moved.after.logp)):
        measured = (after - before)[evidence.rows][inside]
        assert torch.allclose(predicted[inside], measured, atol=1e-2 * float(measured.abs().max()))
        assert float(measured.abs().max()) > 1e-6


def test_sides_of_the_first_step_sum_to_it_without_a_past() -> None:
    evidence, microscope = examined("clip", rate=1e-5)
    effects, inside = evidence.effects, microscope.seen.mask
    both = (effects.first_positive + effects.first_negative)[inside]
    gap = (both - effects.first[inside]).abs().max() / effects.first[inside].abs().max()
    assert 0 < float(gap) < 5e-3, "only decay may be left over"


def test_a_batch_of_one_step_is_its_own_mini_batch() -> None:
    credited, _ = a_batch()
    plan = plan_for(credited, optimizer_steps=1)
    policy = tiny_policy()
    built = AggregatedObjective(CLIP, "token-mean", CONSTANT)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-4)
    microscope = Microscope(policy, optimizer, credited, plan, built, LENS)
    options = UpdateOptions(ForwardOptions(temperature=1.0, dtype="float64"), gradient_clip=0.5, seed=5)
    run_plan(policy, credited, plan, built, optimizer, options, after_step=microscope.after_optimizer_step)
    effects = microscope.evidence().effects
    assert torch.allclose(effects.raw_positive, effects.mini_positive)
    assert torch.allclose(effects.raw_negative, effects.mini_negative)
    assert float(effects.raw_positive.abs().max()) > 0


def test_the_whole_batch_is_the_average_of_its_mini_batches() -> None:
    """For tokens of each step the whole batch's effect is what a plan of one step would give them."""
    evidence, microscope = examined("clip")
    credited = microscope.credited
    one_step = plan_for(credited, optimizer_steps=1)
    policy = tiny_policy()
    built = AggregatedObjective(CLIP, "token-mean", CONSTANT)
    whole = Microscope(policy, torch.optim.AdamW(policy.model.parameters()), credited, one_step, built, LENS)
    inside = microscope.seen.mask
    scale = float(evidence.effects.raw_positive.abs().max())
    assert torch.allclose(evidence.effects.raw_positive[inside], whole.mini.positive[inside], atol=CLOSE * scale)
    assert torch.allclose(evidence.effects.raw_negative[inside], whole.mini.negative[inside], atol=CLOSE * scale)


def test_whole_groups_are_looked_at_those_with_a_contrast_first() -> None:
    credited = made_up_credit(made_up_rollouts(groups=6, group_size=3))
    reward = credited.scored.reward
    live = {
        int(g) for g in credited.rollouts.group.unique() if len(set(reward[credited.rollouts.group == g].tolist()) - {float("nan")}) > 1
    }
    for seed in range(8):
        rows = choose_rows(credited, groups=2, seed=seed)
        chosen = credited.rollouts.group[rows].tolist()
        assert len(rows) == 6
        assert len(set(chosen)) == 2
        assert len(set(chosen) & live) == min(2, len(live))
    assert len({tuple(choose_rows(credited, groups=2, seed=seed).tolist()) for seed in range(8)}) > 1
    assert choose_rows(credited, groups=0, seed=0).tolist() == list(range(18))


LOOKS = {"every": 2, "groups": 2, "coupling_tokens": 64}
SAMPLING = {"value_budget": 16, "value_continuations": 2, "drift_budget": 8}


@pytest.mark.parametrize(
    ("setting", "looks"),
    [
        ({"recipe": "delta"}, LOOKS | SAMPLING),
        ({"recipe": "dfpo"}, LOOKS),
        ({"recipe": "ktae", "dtype": "bfloat16"}, LOOKS),
        ({"recipe": "dapo", "batching": {"type": "reward-balanced", "method": "subsample"}}, LOOKS | SAMPLING),
        ({"recipe": "ntf", "sampling": {"prompts": 24, "group_size": 1}}, LOOKS | SAMPLING),
    ],
    ids=["delta", "dfpo", "ktae in bfloat16", "subsampled", "single responses"],
)
def test_looking_changes_nothing_to_the_bit(setting: dict, looks: dict, tmp_path: Path) -> None:
    run(small_config(**setting), tmp_path / "blind")
    run(small_config(**setting, diagnose=looks), tmp_path / "seen")
    assert same_weights(tmp_path / "blind", tmp_path / "seen")
    blind, seen = files_of(tmp_path / "blind"), files_of(tmp_path / "seen")
    findings = {name for name in seen if name.startswith("findings/")}
    assert {Path(name).stem for name in findings} == {"step-000001", "step-000002", "step-000004"}
    different = {name for name in blind if blind[name] != seen[name]}
    assert set(seen) - findings == set(blind)
    assert different == {"config.toml"}


def test_a_look_is_let_go_before_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds copies of the weights."""
    alive: weakref.WeakSet[Microscope] = weakref.WeakSet()
    most = []

    class Counted(Microscope):
        def __init__(self, *given: Any) -> None:
            gc.collect()
            most.append(len(alive))
            super().__init__(*given)
            alive.add(self)

    monkeypatch.setattr("tokencredit.trainer.step.Microscope", Counted)
    run(small_config(diagnose=LOOKS | {"every": 1}), tmp_path / "run")
    assert most == [0, 0, 0, 0]


def test_in_bfloat16_what_is_measured_is_the_update_not_rounding(tmp_path: Path) -> None:
    run(small_config(dtype="bfloat16", steps=2, diagnose=LOOKS | {"groups": 0}), tmp_path / "run")
    found = {f["name"]: f["numbers"] for f in json.loads((tmp_path / "run" / "findings" / "step-000002.json").read_text())["findings"]}
    assert found["effect"]["first/correlation"] > 0.95
    assert found["coupling"]["head_mismatch"] < 1e-2


@pytest.mark.parametrize("when", ["choose_rows", "movement"])
def test_running_out_of_memory_is_said_in_words(when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(f"tokencredit.optim.microscope.{when}", too_large)
    with pytest.raises(GuardError, match=r"set diagnose\.every to 0"):
        run(small_config(diagnose=LOOKS), tmp_path / "run")


def test_never_looking_makes_no_microscope(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("a microscope was made")

    monkeypatch.setattr("tokencredit.trainer.step.Microscope", forbidden)
    run(small_config(), tmp_path / "run")
    assert not (tmp_path / "run" / "findings").exists()
    with pytest.raises(AssertionError, match="a microscope was made"):
        run(small_config(diagnose=LOOKS), tmp_path / "looking")


def test_a_resumed_run_finds_the_same(tmp_path: Path) -> None:
    config = small_config(diagnose=LOOKS | {"value_budget": 32, "value_continuations": 4, "drift_budget": 16})
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop_after=3)
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_sampled_evidence_is_counted_and_kept_to_its_budget(tmp_path: Path) -> None:
    run(small_config(steps=1, diagnose=LOOKS | {"value_budget": 48, "value_continuations": 4, "drift_budget": 13}), tmp_path / "run")
    found = json.loads((tmp_path / "run" / "findings" / "step-000001.json").read_text())
    names = [finding["name"] for finding in found["findings"]]
    assert names == [name for known in FINDINGS for name in ([known, "drift-fresh"] if known == "drift" else [known])]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["diagnosis_rollouts"] == found["rollouts_used"]
    value = found["findings"][-1]
    assert value["name"] == "value"
    assert 0 < found["rollouts_used"] <= 48 + 13
    import pyarrow.parquet as parquet

    rows = parquet.read_table(tmp_path / "run" / "findings" / "step-000001.parquet").to_pylist()
    known = [row for row in rows if row["value_before"] is not None]
    assert 0 < len(known) <= 48 // (2 * 4)
    assert all(row["value_after"] is not None and 0 <= row["value_before"] <= 1 for row in known)


def test_a_real_transformer_is_predicted_well_in_float32() -> None:
    """The embedded default at its own learning rate: how far the tool may trust itself."""
    config = small_config(sampling={"prompts": 12, "group_size": 8}, diagnose={"every": 1, "groups": 0})
    trainer, state = trainer_of(config), MethodState()
    for number in range(3):
        finished = step_once(trainer, number, state, observe=number == 2)
        state = finished.methods_after(state)
    assert finished.trained
    look = finished.observation
    assert look is not None
    evidence = look.evidence()
    inside, before = look.seen.mask, evidence.moved.before.logp[evidence.rows]
    for predicted, after in ((evidence.effects.first, evidence.logp_first), (evidence.effects.step, evidence.moved.after.logp)):
        pair = torch.stack([predicted[inside], (after[evidence.rows] - before)[inside]])
        assert float(torch.corrcoef(pair)[0, 1]) > 0.95


def test_seeds_of_optimizer_steps_are_told_apart() -> None:
    assert len({step_seed(seed, number) for seed in range(3) for number in range(3)}) == 9

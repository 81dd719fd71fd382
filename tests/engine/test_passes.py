"""Packed passes in training: the same evidence, plan, gradient and credit as padded ones, wherever hidden states wait."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

import tokencredit.forward.modes as passes_module
import tokencredit.forward.packed_scoring as evidence_module
import tokencredit.optim.update as update_module
import tokencredit.rollout.scoring as pipeline_module
import tokencredit.trainer.step as step_module
from engine.runs import small_config, trainer_of
from tiny import CONSTANT, made_up_credit, made_up_rollouts, plan_for, tiny_policy
from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.credit.features import DeviceFeatures, HostFeatures, RecomputedFeatures
from tokencredit.errors import ConfigError, GuardError
from tokencredit.forward.modes import PADDED, ForwardMode, ForwardOptions, choose_forward_mode
from tokencredit.forward.packed import packed_hidden
from tokencredit.forward.packed_scoring import FeatureRoom, score_packed_rows
from tokencredit.forward.packing import PackedLayout
from tokencredit.forward.padded import response_logits, row_cost, score_rows
from tokencredit.optim.update import UpdateOptions, accumulate_gradient, run_plan
from tokencredit.pipeline.build import build_objective
from tokencredit.pipeline.credit import MethodState
from tokencredit.policy.policy import Policy
from tokencredit.rollout.scoring import score_tokens
from tokencredit.trainer.loop import step_once
from tokencredit.types import Rollouts, TokenScores

SCORING: dict[str, Any] = {"temperature": 0.7, "max_tokens": 30, "keep_hidden": True}


def gradient(policy: Policy, name: str, mode: ForwardMode, *, recompute: bool = False) -> dict[str, Tensor]:
    rollouts = made_up_rollouts()
    credited = made_up_credit(rollouts)
    plan = plan_for(credited, optimizer_steps=1)
    policy.model.zero_grad(set_to_none=True)
    built = build_objective(resolve([{"recipe": name}]), max_length=CONSTANT)
    found = accumulate_gradient(policy, credited, plan.steps[0], built, ForwardOptions(temperature=0.7, mode=mode, recompute=recompute))
    told = {"numbers": torch.tensor([found.loss, found.silenced_share, found.ratio_mean])}
    return told | {name: parameter.grad for name, parameter in policy.model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["dapo", "gspo", "dfpo"])
def test_the_gradient_of_an_optimizer_step_is_that_of_padded_passes(name: str, recompute: bool) -> None:
    policy = tiny_policy()
    padded = gradient(policy, name, PADDED)
    packed = gradient(policy, name, ForwardMode(packed=True), recompute=recompute)
    assert padded["numbers"].abs().max() > 1e-3
    assert padded.keys() == packed.keys()
    for part, value in padded.items():
        # Norms of the model work in float32 whatever it is in.
        assert torch.allclose(packed[part], value, rtol=1e-5, atol=1e-8), part


def features(evidence: TokenScores) -> Tensor:
    assert evidence.features is not None
    found = torch.zeros(len(evidence.features), evidence.features.width, dtype=torch.float64)
    for number, chunk in evidence.features.chunks():
        found[evidence.features.runs[number]] = chunk
    return found


@pytest.mark.parametrize(
    ("room", "kind"),
    [
        (FeatureRoom(), DeviceFeatures),
        (FeatureRoom("host"), HostFeatures),
        (FeatureRoom(device_bytes=100), HostFeatures),
        (FeatureRoom("recompute"), RecomputedFeatures),
    ],
)
def test_evidence_is_that_of_the_padded_pass_wherever_hidden_states_wait(room: FeatureRoom, kind: type) -> None:
    policy, rollouts = tiny_policy(), made_up_rollouts()
    assert not torch.equal(rollouts.mask, rollouts.loss_mask)
    padded = score_rows(policy.model, rollouts, **SCORING)
    packed = score_packed_rows(policy.model, rollouts, **SCORING, room=room)
    assert isinstance(packed.features, kind)
    assert torch.allclose(packed.logp, padded.logp, atol=1e-12)
    assert torch.allclose(packed.entropy, padded.entropy, atol=1e-12)
    assert padded.hidden is not None
    assert torch.allclose(features(packed), padded.hidden[rollouts.loss_mask], atol=1e-12)


class Tight:
    """Recomputed passes of more than `limit` packed tokens run out of memory; the others are counted."""

    def __init__(self, patch: pytest.MonkeyPatch, limit: int) -> None:
        self.seen: list[int] = []
        self.failed = 0

        def bounded(model: Any, layout: PackedLayout) -> Tensor:
            if layout.ids.shape[1] > limit:
                self.failed += 1
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.seen.append(layout.ids.shape[1])
            return packed_hidden(model, layout)

        # The scoring pass itself takes another way to the same function.
        patch.setattr(evidence_module, "packed_hidden", bounded)


def test_hidden_states_that_are_computed_again_get_by_with_half_once_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rollouts = tiny_policy(), made_up_rollouts()
    asked: dict[str, Any] = {"recipe": "delta", "passes": "packed", "features": "recompute", "dtype": "float64"}
    config = small_config(**asked, optimizer={"max_tokens": 60})
    told: list[str] = []
    forgotten: list[None] = []
    found = score_tokens(config, policy.model, rollouts, keep_hidden=True, notify=told.append, free_memory=lambda: forgotten.append(None))
    roomy = features(found)
    longest = max(row_cost(rollouts))
    tight = Tight(monkeypatch, limit=max(longest, 31))
    assert torch.allclose(features(found), roomy, atol=1e-12)
    assert (len(told), len(forgotten), tight.failed) == (1, 1, 1)
    assert re.match(r"out of memory while recomputing hidden states with \d+ tokens in a pass; trying again .* with \d+", told[0])
    # What was too much is not tried at the next sweep.
    assert torch.allclose(features(found), roomy, atol=1e-12)
    assert (len(told), tight.failed) == (1, 1)
    monkeypatch.undo()
    Tight(monkeypatch, limit=1)
    with pytest.raises(GuardError, match="out of memory while recomputing hidden states, also with"):
        features(found)


def test_hidden_states_that_are_computed_again_begin_as_scoring_passes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rollouts = tiny_policy(), made_up_rollouts()
    inside: list[bool] = []

    @contextmanager
    def beginning(model: Any) -> Iterator[None]:
        inside.append(True)
        yield
        inside.pop()

    def watched(model: Any, layout: PackedLayout) -> Tensor:
        assert inside
        return packed_hidden(model, layout)

    class Compiled(ForwardMode):
        def context(self, model: Any) -> Any:
            return beginning(model)

    monkeypatch.setattr(evidence_module, "packed_hidden", watched)
    config = small_config(recipe="delta", passes="packed", features="recompute", dtype="float64")
    found = score_tokens(config, policy.model, rollouts, keep_hidden=True, mode=Compiled(packed=True, compiled=True))
    assert not inside
    assert features(found).abs().max() > 0
    assert not inside


def test_a_run_chooses_its_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def counted(config: TrainConfig, model: Any) -> ForwardMode:
        asked.append(None)
        return choose_forward_mode(config, model)

    for module in (step_module, pipeline_module):
        monkeypatch.setattr(module, "choose_forward_mode", counted)
    trainer = trainer_of(small_config(recipe="delta", scoring="pass", kl={"beta": 0.1}))
    for number in range(2):
        assert step_once(trainer, number, MethodState()) is not None
    assert len(asked) == 1


def test_hidden_states_are_kept_only_where_asked() -> None:
    packed = score_packed_rows(tiny_policy().model, made_up_rollouts(), temperature=1.0, max_tokens=30)
    assert packed.features is None


def test_a_batch_without_any_sampled_token_is_scored_as_nothing() -> None:
    rollouts = made_up_rollouts()
    nothing = Rollouts(
        prompts=rollouts.prompts,
        tokens=rollouts.tokens,
        mask=torch.zeros_like(rollouts.mask),
        group=rollouts.group,
        behavior_logp=rollouts.behavior_logp,
        finished=rollouts.finished,
    )
    packed = score_packed_rows(tiny_policy().model, nothing, **SCORING)
    assert not packed.logp.any()
    assert packed.features is None or len(packed.features) == 0


def one_step(config: TrainConfig) -> tuple[dict[str, Tensor], Tensor, tuple[int, ...]]:
    trainer = trainer_of(config)
    trained = step_once(trainer, 0, MethodState())
    assert trained.trained
    weights = {name: parameter.detach().clone() for name, parameter in trainer.policy.model.named_parameters()}
    return weights, trained.credited.credit, tuple(len(step.micro_batches) for step in trained.plan.steps)


def test_a_training_step_with_packed_passes_ends_where_a_padded_one_does() -> None:
    common = {"recipe": "delta", "scoring": "pass", "dtype": "float64", "optimizer": {"max_tokens": 400, "steps_per_batch": 2}}
    weights, credit, cuts = one_step(small_config(**common))
    assert credit.abs().max() > 0.1
    for more in ({}, {"features": "host"}, {"features": "recompute"}):
        packed_weights, packed_credit, packed_cuts = one_step(small_config(**common, passes="packed", **more))
        assert torch.allclose(packed_credit, credit, atol=1e-6)
        assert sum(packed_cuts) <= sum(cuts)
        for name, value in weights.items():
            assert torch.allclose(packed_weights[name], value, atol=1e-7), name


def test_what_auto_chooses_and_what_is_refused() -> None:
    policy = tiny_policy(torch.float32)

    def chosen(**given: Any) -> ForwardMode:
        return choose_forward_mode(resolve([given]), policy.model)

    assert chosen() == PADDED
    assert chosen(passes="packed") == ForwardMode(packed=True)
    for field, asked in {"compile": "on", "features": "host"}.items():
        with pytest.raises(ConfigError, match=f"{field} is '{asked}', which only packed passes use; set passes to 'packed'"):
            chosen(**{field: asked})
        with pytest.raises(ConfigError, match=f"{field} is '{asked}' but passes is 'padded'.*use passes 'auto' or 'packed'"):
            chosen(**{field: asked}, passes="padded")
    with pytest.raises(ConfigError, match="compile is 'on' but the model is not on a GPU"):
        chosen(passes="packed", compile="on")
    with pytest.raises(ConfigError, match="features_gib"):
        resolve([{"features": "host", "features_gib": 2.0}])
    policy.model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match=r"passes is 'packed' but model .* cannot be packed: its attention is 'eager'"):
        chosen(passes="packed")


class OnGpu:
    """A model of which only where it lies and how large it is is asked."""

    def __init__(self, head: int = 64, parameters: int = 10**9) -> None:
        self.device, self.size = torch.device("cuda"), parameters
        self.config = LlamaConfig(hidden_size=4 * head, num_attention_heads=4, head_dim=head)

    def num_parameters(self) -> int:
        return self.size


def test_on_a_gpu_large_models_are_compiled_where_flash_attention_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "packing_unsupported_reason", lambda model: None)
    monkeypatch.setattr(passes_module, "triton_unavailable_reason", lambda: None)

    def chosen(model: OnGpu, **given: Any) -> ForwardMode:
        return choose_forward_mode(resolve([{"diagnose": {"every": 0}, **given}]), model)  # pyright: ignore[reportArgumentType]

    assert chosen(OnGpu(), dtype="bfloat16") == ForwardMode(packed=True, compiled=True)
    assert chosen(OnGpu(parameters=10**6), dtype="bfloat16") == ForwardMode(packed=True)
    assert chosen(OnGpu(parameters=10**6), dtype="bfloat16", compile="on") == ForwardMode(packed=True, compiled=True)
    assert chosen(OnGpu(), dtype="bfloat16", compile="off") == ForwardMode(packed=True)
    assert chosen(OnGpu(), dtype="float32") == ForwardMode(packed=True)
    assert chosen(OnGpu(head=260), dtype="bfloat16") == ForwardMode(packed=True)
    with pytest.raises(ConfigError, match="compile is 'on' but dtype is 'float32'"):
        chosen(OnGpu(), compile="on")
    monkeypatch.setattr(passes_module, "triton_unavailable_reason", lambda: "no compiler")
    assert chosen(OnGpu(), dtype="bfloat16") == ForwardMode(packed=True)


def test_hidden_states_are_kept_as_the_head_multiplies_them() -> None:
    """Float32 weights leave float32 hidden states behind even in a bfloat16 pass."""
    packed = score_packed_rows(tiny_policy(torch.float32).model, made_up_rollouts(), **SCORING, dtype="bfloat16")
    again = score_packed_rows(
        tiny_policy(torch.float32).model, made_up_rollouts(), **SCORING, dtype="bfloat16", room=FeatureRoom("recompute")
    )
    for evidence in (packed, again):
        assert evidence.features is not None
        assert {chunk.dtype for _, chunk in evidence.features.chunks()} == {torch.bfloat16}


def test_a_plan_cut_for_packed_passes_is_cut_again_for_padded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, credited = tiny_policy(), made_up_credit(made_up_rollouts())
    plan = plan_for(credited, max_tokens=60, optimizer_steps=1, packed=True)
    built = build_objective(resolve([{"recipe": "dapo"}]), max_length=CONSTANT)
    seen: list[int] = []

    def counted(model: Any, prompts: Any, tokens: Tensor) -> Any:
        seen.append(len(prompts) * (max(map(len, prompts)) + tokens.shape[1]))
        return response_logits(model, prompts, tokens)

    monkeypatch.setattr(update_module, "response_logits", counted)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    options = ForwardOptions(temperature=1.0, dtype="float64")
    run_plan(policy, credited, plan, built, optimizer, UpdateOptions(options, gradient_clip=1.0))
    assert max(seen) > 40
    seen.clear()
    run_plan(policy, credited, plan, built, optimizer, UpdateOptions(replace(options, max_tokens=40), gradient_clip=1.0))
    assert max(seen) <= 40

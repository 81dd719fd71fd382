"""LoRA: adapters alone are trained, exactly; anybody can load what is saved; and a resume ends with the same bits."""

import random
import sys
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.runs import files_of, newest, run, small_config, trainer_of
from fault.interrupting import interrupted_at, optimizer_class
from runs.test_guards import poison_rewards
from runs.test_microscope import LENS, OBJECTIVES_UNDER_TEST, a_batch
from tiny import CONSTANT, tiny_policy
from tokencredit.analysis.replay import recreate
from tokencredit.config.resolve import resolve
from tokencredit.config.train import Lora
from tokencredit.errors import ConfigError
from tokencredit.forward.first_order import predicted_change
from tokencredit.forward.modes import ForwardOptions
from tokencredit.forward.padded import trainable_parameters
from tokencredit.optim.microscope import Microscope
from tokencredit.optim.update import UpdateOptions, accumulate_gradient, run_plan
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.policy.lora import ADAPTER_FILE, add_adapters, base_checksum, load_adapters, merged_state, save_adapters
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.storage.run_dir import RunDir
from tokencredit.trainer.checkpoint import save_model
from tokencredit.trainer.failed_batch import replay

LORA = Lora(rank=3, alpha=6.0)


def lora_config(**changes: Any) -> Any:
    return small_config(**{"lora": {"rank": 4, "alpha": 8.0}, "optimizer": {"steps_per_batch": 2, "learning_rate": 3e-3}} | changes)


def stir(model: PreTrainedModel, seed: int = 0, size: float = 0.3) -> None:
    """Adapters that do something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))


def adapted(lora: Lora = LORA, dtype: torch.dtype = torch.float64) -> Policy:
    policy = tiny_policy(dtype)
    add_adapters(policy.model, lora, seed=0)
    stir(policy.model)
    return policy


def logits(model: PreTrainedModel) -> Tensor:
    ids = torch.arange(3, 19, device=model.device).reshape(2, 8)
    with torch.no_grad():
        return cast(Any, model)(ids).logits


def test_only_adapters_are_trained_and_the_model_is_of_its_own_class(tmp_path: Path) -> None:
    outcome = run(lora_config(steps=2), tmp_path / "run")
    model, base = outcome.policy.model, load_policy("steps-shift", device=torch.device("cpu"), dtype="float32").model
    assert type(model) is type(base)
    assert not any(module.training for module in model.modules())
    trained = trainable_parameters(model)
    assert 0 < sum(value.numel() for value in trained.values()) < sum(value.numel() for value in base.parameters())
    assert all(".lora_" in name for name in trained)
    assert any(bool(value.any()) for name, value in trained.items() if ".lora_B." in name)
    live = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items() if ".lora_" not in name}
    assert all(torch.equal(value, live[name]) for name, value in base.state_dict().items())
    moved = load_file(newest(tmp_path / "run") / "model.safetensors")
    assert {name for name, value in moved.items() if not torch.equal(value, live[name])} == {name for name in moved if "_proj" in name}


def llama(tied: bool) -> PreTrainedModel:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=30, initializer_range=0.5, tie_word_embeddings=tied, eos_token_id=1))


def gpt2() -> PreTrainedModel:
    """Keeps its matrices the other way round, has biases, and a dropout that must not be drawn."""
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=64, vocab_size=30, bos_token_id=2, eos_token_id=1))


@pytest.mark.parametrize("make", [lambda: llama(True), lambda: llama(False), gpt2], ids=["tied", "untied", "gpt2"])
def test_merged_weights_are_loaded_by_anybody_and_say_the_same(make: Any, tmp_path: Path) -> None:
    model = make().eval()
    plain = logits(model)
    add_adapters(model, LORA, seed=0)
    torch.testing.assert_close(logits(model), plain, atol=0, rtol=0)
    stir(model)
    known = tiny_policy()
    save_model(Policy(model=model, tokenizer=known.tokenizer, end_tokens=(1,)), tmp_path / "saved")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert float((logits(model) - plain).abs().max()) > 0.1
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-5 * float(plain.abs().max()), rtol=0)
    same = loaded.get_input_embeddings().weight.data_ptr() == loaded.get_output_embeddings().weight.data_ptr()
    assert same == model.config.tie_word_embeddings
    assert ("lm_head.weight" in load_file(tmp_path / "saved" / "model.safetensors")) == (not same)


def test_adapters_receive_the_share_of_the_gradient_that_the_chain_rule_gives_them() -> None:
    """With W = W0 + s B A: dA = s B' dW and dB = s dW A', where dW is the gradient of the merged model."""
    credited, plan = a_batch()
    built = AggregatedObjective(OBJECTIVES_UNDER_TEST["clip"], "token-mean", CONSTANT)
    policy, whole = adapted(), tiny_policy()
    whole.model.load_state_dict(merged_state(policy.model))
    for learner in (policy, whole):
        accumulate_gradient(learner, credited, plan.steps[0], built, ForwardOptions(temperature=1.0, dtype="float64"))
    scale = LORA.alpha / LORA.rank
    trained, checked = trainable_parameters(policy.model), 0
    for name, weight in whole.model.named_parameters():
        stem = name.removesuffix(".weight")
        if f"{stem}.lora_A.default.weight" not in trained:
            continue
        a, b = (trained[f"{stem}.lora_{side}.default.weight"] for side in "AB")
        assert weight.grad is not None
        for found, wanted in ((a.grad, scale * b.detach().T @ weight.grad), (b.grad, scale * weight.grad @ a.detach().T)):
            assert found is not None
            torch.testing.assert_close(found, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)
        checked += 1
    assert checked == 14
    assert all(parameter.grad is None for parameter in policy.model.parameters() if not parameter.requires_grad)


@pytest.mark.parametrize("steps_before", [0, 2])
def test_the_microscope_predicts_a_small_step(steps_before: int) -> None:
    credited, plan = a_batch()
    policy = tiny_policy()
    add_adapters(policy.model, LORA, seed=0)
    optimizer = torch.optim.AdamW(trainable_parameters(policy.model).values(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.01)
    built = AggregatedObjective(OBJECTIVES_UNDER_TEST["clip"], "token-mean", CONSTANT)
    forward = ForwardOptions(temperature=LENS.temperature, dtype=LENS.dtype)
    for number in range(steps_before):
        run_plan(policy, credited, plan, built, optimizer, UpdateOptions(forward, LENS.gradient_clip, number))
    look = Microscope(policy, optimizer, credited, plan, built, LENS)
    options = UpdateOptions(forward, LENS.gradient_clip, LENS.seed)
    run_plan(policy, credited, plan, built, optimizer, options, after_step=look.after_optimizer_step)
    evidence, inside = look.evidence(), look.seen.mask
    assert evidence.method == "jvp"
    before = evidence.moved.before.logp
    for predicted, after in ((evidence.effects.first, evidence.logp_first), (evidence.effects.step, evidence.moved.after.logp)):
        measured = (after - before)[evidence.rows][inside]
        assert float(measured.abs().max()) > 1e-7
        torch.testing.assert_close(predicted[inside], measured, atol=1e-2 * float(measured.abs().max()), rtol=0)
    if not steps_before:
        # A fresh optimizer's step is what both sides gave it, but for the decay of weights.
        parts = (evidence.effects.first_positive + evidence.effects.first_negative)[inside]
        assert float((parts - evidence.effects.first[inside]).abs().max()) < 0.1 * float(parts.abs().max())


def test_forward_mode_and_a_difference_agree_along_adapters() -> None:
    policy, rollouts = adapted(), a_batch()[0].rollouts
    generator = torch.Generator().manual_seed(4)
    along = {name: torch.randn(value.shape, generator=generator).double() for name, value in trainable_parameters(policy.model).items()}
    found = [
        predicted_change(policy.model, rollouts, {"some": along}, temperature=1.0, max_tokens=80, method=method).change["some"]
        for method in ("jvp", "difference")
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-3 * float(found[0].abs().max()), rtol=0)
    assert float(found[0].abs().max()) > 0.1


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_run_stopped_inside_a_batch_ends_with_the_same_bits(tmp_path: Path, kl: float) -> None:
    config = lora_config(steps=3, recipe="grpo", kl={"beta": kl})
    run(config, tmp_path / "whole")
    at = interrupted_at(optimizer_class(), "step", 3, config, tmp_path / "cut")
    assert at.name == "step-000001-1"
    assert (at / ADAPTER_FILE).is_file()
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_resume_that_forgot_the_adapters_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = lora_config(steps=3)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop_after=2)
    monkeypatch.setattr("tokencredit.policy.lora.load_adapters", lambda model, folder: None)
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") != files_of(tmp_path / "cut")


def test_the_reference_stays_the_base(tmp_path: Path) -> None:
    trainer = trainer_of(lora_config(recipe="grpo", kl={"beta": 0.1}))
    stir(trainer.policy.model)
    base = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32").model
    assert trainer.reference is not None
    assert torch.equal(logits(trainer.reference.model), logits(base))
    assert not torch.equal(logits(trainer.policy.model), logits(base))


def test_first_adapters_follow_from_the_seed_and_the_global_generators_are_left_alone() -> None:
    def first(seed: int, global_seed: int) -> dict[str, Tensor]:
        torch.manual_seed(global_seed)
        random.seed(global_seed)
        numpy.random.seed(global_seed)
        states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
        model = tiny_policy(torch.float32).model
        torch.set_rng_state(states[0])
        add_adapters(model, LORA, seed=seed)
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1:] == (random.getstate(), numpy.random.get_state()[1].tolist())
        return {name: value.detach() for name, value in trainable_parameters(model).items()}

    one, again, other = first(1, 5), first(1, 6), first(2, 5)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if ".lora_A." in name)
    assert not any(bool(value.any()) for name, value in one.items() if ".lora_B." in name)


def test_a_run_with_adapters_is_a_model_like_any_other(tmp_path: Path) -> None:
    """Adapters that lie beside the merged weights are not put on twice."""
    outcome = run(lora_config(steps=2), tmp_path / "run")
    further = trainer_of(lora_config(model=str(newest(tmp_path / "run"))))
    assert not any(bool(value.any()) for name, value in trainable_parameters(further.policy.model).items() if ".lora_B." in name)
    torch.testing.assert_close(logits(further.policy.model), logits(outcome.policy.model), atol=1e-4, rtol=0)
    run(lora_config(steps=1, model=str(tmp_path / "run")), tmp_path / "further")
    assert run(small_config(steps=1, model=str(tmp_path / "further")), tmp_path / "whole").result["steps"] == 1


def test_a_step_taken_again_is_the_same_and_so_is_a_refused_one(tmp_path: Path) -> None:
    config = lora_config(steps=3, diagnose={"every": 3, "groups": 2, "coupling_tokens": 64}, keep_every=1)
    run(config, tmp_path / "run")
    found = recreate(RunDir(tmp_path / "run"), config, 3)
    assert found.same_plan is True
    assert found.start.step == 2
    with pytest.MonkeyPatch.context() as patch:
        poison_rewards(patch)
        run(lora_config(steps=2), tmp_path / "refused")
    again = replay(tmp_path / "refused" / "guards" / "step-000002")
    assert again.reproduced
    assert "gives finite log-probs" in again.fresh_log_probs


def test_adapters_of_another_base_or_rank_are_refused(tmp_path: Path) -> None:
    policy = adapted(dtype=torch.float32)
    save_adapters(policy.model, tmp_path)
    twin = adapted(dtype=torch.float32)
    stir(twin.model, seed=9)
    load_adapters(twin.model, tmp_path)
    assert torch.equal(logits(twin.model), logits(policy.model))
    with pytest.raises(ConfigError, match=r"its adapters are not those of this model and lora\.rank"):
        load_adapters(adapted(Lora(rank=2), torch.float32).model, tmp_path)
    other = tiny_policy(torch.float32, seed=1)
    add_adapters(other.model, LORA, seed=0)
    with pytest.raises(ConfigError, match="the weights of the run's model are not those it began with"):
        load_adapters(other.model, tmp_path)
    with pytest.raises(ConfigError, match=r"holds no adapter\.safetensors"):
        load_adapters(other.model, tmp_path / "elsewhere")
    stored = load_file(tmp_path / ADAPTER_FILE)
    save_file(stored, tmp_path / ADAPTER_FILE)
    with pytest.raises(ConfigError, match="not those it began with"):
        load_adapters(policy.model, tmp_path)


def test_one_bit_of_the_base_changes_its_checksum() -> None:
    policy = adapted(dtype=torch.float32)
    before = base_checksum(policy.model)
    stir(policy.model, seed=3)
    assert base_checksum(policy.model) == before
    weight = policy.model.get_input_embeddings().weight
    with torch.no_grad():
        weight.view(torch.int32)[1, 1] += 1
    assert base_checksum(policy.model) != before


def test_adapters_beside_a_bfloat16_base_stay_in_float32(tmp_path: Path) -> None:
    config = lora_config(steps=2, weights="bfloat16", dtype="bfloat16")
    outcome = run(config, tmp_path / "whole")
    model = outcome.policy.model
    assert {value.dtype for value in trainable_parameters(model).values()} == {torch.float32}
    assert {value.dtype for value in model.parameters() if not value.requires_grad} == {torch.bfloat16}
    assert {value.dtype for value in load_file(newest(tmp_path / "whole") / "model.safetensors").values()} == {torch.bfloat16}
    run(config, tmp_path / "cut", stop_after=1)
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("q_proj,query", r"lora.targets is 'q_proj,query', but 'query' is no layer"),
        ("q_proj,", r"lora.targets is 'q_proj,', but '' is no layer"),
        ("nonsense", r"lora.targets is 'nonsense'"),
        ("q_proj,lm_head", r"names the embedding or the LM head"),
        ("embed_tokens", r"names the embedding or the LM head"),
        ("input_layernorm", r"lora.targets is 'input_layernorm', which this model cannot take"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(targets: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        add_adapters(tiny_policy().model, Lora(rank=2, targets=targets), seed=0)


def test_a_rank_that_no_matrix_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora\.rank is 10000000000000 but no matrix of this model has a rank above 16"):
        add_adapters(tiny_policy().model, Lora(rank=10**13), seed=0)


def test_named_layers_alone_are_adapted() -> None:
    model = tiny_policy().model
    add_adapters(model, Lora(rank=2, targets="q_proj, down_proj"), seed=0)
    assert {name.split(".lora_")[0].split(".")[-1] for name in trainable_parameters(model)} == {"q_proj", "down_proj"}


def test_without_peft_the_field_and_the_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r'lora.rank is 4 but peft is not installed; pip install "tokencredit\[peft\]"'):
        trainer_of(lora_config())
    assert trainer_of(small_config()).policy.model is not None


def test_rank_zero_trains_every_weight() -> None:
    model = tiny_policy().model
    add_adapters(model, resolve([]).lora, seed=0)
    assert trainable_parameters(model).keys() == dict(model.named_parameters()).keys()

"""Gradient checkpointing: the gradient of a pass computed twice is the same to the bit, and nothing but that pass is computed twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from engine.runs import collected_by, files_of, planned_by, run, small_config, trainer_of
from tiny import CONSTANT, gradient_of, made_up_credit, made_up_rollouts, plan_for, tiny_policy
from tokencredit.config.train import Lora
from tokencredit.errors import ConfigError
from tokencredit.forward.modes import ForwardOptions, activation_checkpointing, recomputable_layers
from tokencredit.forward.padded import pays_to_share, score_rows, uses_activation_checkpointing
from tokencredit.objective import OBJECTIVES
from tokencredit.optim.update import accumulate_gradient
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.policy.lora import add_adapters
from tokencredit.policy.policy import Policy
from tokencredit.types import Rollouts


def llama() -> PreTrainedModel:
    return tiny_policy().model


def gpt2() -> PreTrainedModel:
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=64, vocab_size=32, bos_token_id=2, eos_token_id=1))
    assert model.config.resid_pdrop > 0
    return model.double()


def opt() -> PreTrainedModel:
    """Its layers drop out by their own mode, which transformers' switch would have to set to training."""
    sizes = {"hidden_size": 16, "ffn_dim": 24, "word_embed_proj_dim": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    model = OPTForCausalLM(OPTConfig(**sizes, vocab_size=32, max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=1))
    assert model.config.dropout > 0
    return model.double()


MODELS = {"llama": llama, "gpt2": gpt2, "opt": opt}


def policy_of(make: Callable[[], PreTrainedModel]) -> Policy:
    torch.manual_seed(0)
    known = tiny_policy()
    return Policy(model=make().eval(), tokenizer=known.tokenizer, end_tokens=known.end_tokens)


@contextmanager
def counting(model: PreTrainedModel) -> Iterator[list[str]]:
    """Passes through a part of the first layer."""
    calls: list[str] = []
    inside = next(iter(recomputable_layers(model)[0].children()))
    handle = inside.register_forward_hook(lambda *_: calls.append("passed"))
    try:
        yield calls
    finally:
        handle.remove()


def gradient(policy: Policy, *, recompute: bool, rollouts: Rollouts | None = None) -> torch.Tensor:
    credited = made_up_credit(made_up_rollouts() if rollouts is None else rollouts)
    plan = plan_for(credited, max_tokens=400)
    built = AggregatedObjective(OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.28, dual_clip=3.0), "token-mean", CONSTANT)
    policy.model.zero_grad()
    for step in plan.steps:
        accumulate_gradient(policy, credited, step, built, ForwardOptions(temperature=1.0, dtype="float64", recompute=recompute))
    return gradient_of(policy)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_the_same_to_the_bit_and_each_layer_is_passed_twice(name: str) -> None:
    policy = policy_of(MODELS[name])
    with counting(policy.model) as once:
        plain = gradient(policy, recompute=False)
    with counting(policy.model) as twice:
        again = gradient(policy, recompute=True)
    assert torch.equal(plain, again)
    assert float(plain.norm()) > 0
    assert len(twice) == 2 * len(once) > 0


def test_adapters_have_the_same_gradient_too() -> None:
    policy = policy_of(llama)
    add_adapters(policy.model, Lora(rank=2), seed=0)
    plain, again = (gradient(policy, recompute=recompute) for recompute in (False, True))
    assert torch.equal(plain, again)
    assert float(plain.norm()) > 0


def test_prompts_that_a_plain_pass_reads_once_are_read_for_every_row() -> None:
    """A cache would be added to twice; then the gradient would be another one, or none."""
    short = made_up_rollouts(group_size=6)
    rollouts = replace(short, prompts=tuple(prompt * 12 for prompt in short.prompts))
    assert pays_to_share(rollouts.prompts, rollouts.mask.shape[1])
    policy = policy_of(llama)
    plain, again = (gradient(policy, recompute=recompute, rollouts=rollouts) for recompute in (False, True))
    torch.testing.assert_close(again, plain, atol=1e-5 * float(plain.abs().max()), rtol=0)


def test_nothing_is_drawn_and_the_model_stays_in_eval_mode() -> None:
    policy = policy_of(opt)
    before = torch.get_rng_state()
    modes: list[bool] = []
    handle = recomputable_layers(policy.model)[0].register_forward_hook(lambda layer, *_: modes.append(layer.training))
    gradient(policy, recompute=True)
    handle.remove()
    assert modes
    assert not any(modes)
    assert torch.equal(before, torch.get_rng_state())


def test_other_passes_are_as_they_were() -> None:
    policy = policy_of(llama)
    layers = recomputable_layers(policy.model)
    own = [layer.forward for layer in layers]
    with activation_checkpointing(policy.model):
        assert all(layer.forward != forward for layer, forward in zip(layers, own, strict=True))
        assert uses_activation_checkpointing(policy.model)
    assert [layer.forward for layer in layers] == own
    assert not uses_activation_checkpointing(policy.model)
    with pytest.raises(ZeroDivisionError), activation_checkpointing(policy.model):
        _ = 1 / 0
    assert not any("forward" in vars(layer) for layer in layers)
    gradient(policy, recompute=True)
    with counting(policy.model) as calls:
        score_rows(policy.model, made_up_rollouts(), temperature=1.0, max_tokens=10_000)
    assert len(calls) == 1


@pytest.mark.parametrize("looks", [0, 1])
def test_a_run_with_it_has_the_bits_of_one_without(tmp_path: Path, looks: int) -> None:
    for name, recompute in (("plain", False), ("again", True)):
        optimizer = {"steps_per_batch": 2, "gradient_checkpointing": recompute}
        config = small_config(steps=2, optimizer=optimizer, diagnose={"every": looks, "groups": 2, "coupling_tokens": 64})
        run(config, tmp_path / name)
    plain, again = (files_of(tmp_path / name) for name in ("plain", "again"))
    assert plain.pop("config.toml") != again.pop("config.toml")
    assert plain == again


def test_a_run_computes_again_only_where_it_is_asked_to() -> None:

    passes: list[int] = []
    for recompute in (False, True):
        trainer = trainer_of(small_config(optimizer={"steps_per_batch": 2, "gradient_checkpointing": recompute}))
        with counting(trainer.policy.model) as sampled:
            gathered = collected_by(trainer, 0)
        with counting(trainer.policy.model) as updated:
            trainer.update(planned_by(trainer, 0, gathered))
        passes += [len(sampled), len(updated)]
    assert passes[2] == passes[0]
    assert passes[3] == 2 * passes[1]


def test_a_model_whose_layers_cannot_be_computed_again_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_policy().tokenizer
    config = OpenAIGPTConfig(n_layer=1, n_embd=16, n_head=2, n_positions=64, vocab_size=len(tokenizer))
    OpenAIGPTLMHeadModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"optimizer\.gradient_checkpointing is true but no layer of OpenAIGPTLMHeadModel"):
        trainer_of(small_config(model=str(tmp_path / "model"), optimizer={"steps_per_batch": 2, "gradient_checkpointing": True}))

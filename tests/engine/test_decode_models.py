"""Which models the fast sampler takes, whose weights it reads, and what it copies."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tiny import tiny_policy
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.cuda_graph import FastSampler, unsupported_reason
from tokencredit.rollout.cuda_graph.buffers import Weights, _matrices
from tokencredit.rollout.cuda_graph.supported_models import decoder_weights, unsupported_kernel_reason, unsupported_model_reason

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def llama(**more: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES | more))


def with_part(place: str, part: torch.nn.Module) -> PreTrainedModel:
    model = llama()
    owner, _, name = place.rpartition(".")
    setattr(model.get_submodule(owner), name, part)
    return model


class Scaled(torch.nn.Linear):
    """Somebody's adapter: a linear layer whose weight is not all."""


class Own(LlamaForCausalLM):
    """Somebody's model: it may do anything in its forward."""


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
REFUSED = {
    "GPT2LMHeadModel is not one of": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)),
    "Own is not one of": lambda: Own(LlamaConfig(**SIZES)),
    "activation is 'gelu'": lambda: llama(hidden_act="gelu"),
    "window of 16": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16)),
    "full attention": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    "'dynamic', whose angles depend": lambda: llama(rope_parameters=DYNAMIC),
    "a linear layer is a Scaled": lambda: with_part("model.layers.1.self_attn.v_proj", Scaled(32, 16, bias=False)),
    "output or MLP matrices have biases": lambda: llama(attention_bias=True),
    "some have none": lambda: with_part("model.layers.0.self_attn.k_proj", torch.nn.Linear(32, 16)),
    "LM head is more": lambda: with_part("lm_head", torch.nn.Linear(32, 50)),
    "norms are of several kinds": lambda: with_part("model.layers.0.input_layernorm", torch.nn.RMSNorm(32)),
    "several types": lambda: with_part("model.layers.0.self_attn.q_proj", torch.nn.Linear(32, 32, bias=False, dtype=torch.float64)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_model_it_does_not_know_is_refused_with_the_reason(reason: str) -> None:
    policy = replace(tiny_policy(), model=REFUSED[reason]())
    assert reason in str(unsupported_reason(policy, "bfloat16"))
    with pytest.raises(ConfigError, match="cannot run this model"):
        FastSampler(policy, backend="plain")


@pytest.mark.parametrize("model", [llama(), MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None))], ids=["llama", "mistral"])
def test_models_it_knows_are_taken_on_a_cuda_device_alone(model: PreTrainedModel) -> None:
    policy = replace(tiny_policy(), model=model)
    assert unsupported_model_reason(model) is None
    assert "not on a CUDA device" in str(unsupported_reason(policy, "bfloat16"))
    assert "17 end tokens" in str(unsupported_reason(replace(policy, end_tokens=tuple(range(17))), "bfloat16"))


def test_kernels_say_what_they_lack() -> None:
    body = decoder_weights(llama())
    on_gpu = body._replace(embeddings=_Elsewhere())
    assert "head size is 16" in str(unsupported_kernel_reason(on_gpu, torch.bfloat16))
    assert "float64" in str(unsupported_kernel_reason(on_gpu, torch.float64))
    assert unsupported_kernel_reason(on_gpu._replace(head_dim=32), torch.bfloat16) is None


class _Elsewhere:
    """Stands for a tensor on a GPU."""

    device = torch.device("cuda")


def drawn(policy: Policy, sampler: FastSampler, dtype: str = "bfloat16") -> torch.Tensor:
    return sampler.sample(
        policy, [[3, 4], [5]], SamplingParams(group_size=2, max_new_tokens=4, seed=1, greedy=True, dtype=dtype)
    ).evidence.logp


def policy_of(model: PreTrainedModel) -> Policy:
    return replace(tiny_policy(), model=model.eval(), end_tokens=(-1,))


def test_bfloat16_weights_are_read_where_they_are_and_an_update_is_seen() -> None:
    torch.manual_seed(0)
    policy = policy_of(llama(initializer_range=0.4).to(torch.bfloat16))
    weights = Weights(policy.model, torch.bfloat16)
    assert weights.used is weights.own
    assert weights.used.layers[1].gate.data_ptr() == policy.model.get_parameter("model.layers.1.mlp.gate_proj.weight").data_ptr()
    sampler = FastSampler(policy, backend="plain")
    before = drawn(policy, sampler)
    with torch.no_grad():
        policy.model.get_parameter("model.layers.1.mlp.gate_proj.weight").mul_(-2)
    after = drawn(policy, sampler)
    assert not torch.equal(before, after)
    assert torch.equal(after, drawn(policy, FastSampler(policy, backend="plain")))


def test_float32_weights_have_one_copy_that_is_refreshed_at_each_call() -> None:
    torch.manual_seed(0)
    policy = policy_of(llama(initializer_range=0.4))
    weights = Weights(policy.model, torch.bfloat16)
    matrices = sum(weight.numel() for name, weight in policy.model.named_parameters() if "norm" not in name and "embed" not in name)
    assert sum(matrix.nbytes for matrix in _matrices(weights.used)) == 2 * matrices
    own = {parameter.data_ptr() for parameter in policy.model.parameters()}
    assert not own & {matrix.data_ptr() for matrix in _matrices(weights.used)}
    assert weights.used.embeddings is weights.own.embeddings
    place = weights.used.layers[0].down.data_ptr()
    weights.refresh()
    assert weights.used.layers[0].down.data_ptr() == place
    sampler = FastSampler(policy, backend="plain")
    before = drawn(policy, sampler)
    with torch.no_grad():
        policy.model.get_parameter("model.layers.0.mlp.down_proj.weight").mul_(-2)
    after = drawn(policy, sampler)
    assert not torch.equal(before, after)
    assert torch.equal(after, drawn(policy, FastSampler(policy, backend="plain")))


def test_weights_that_were_put_elsewhere_are_found_again() -> None:
    torch.manual_seed(0)
    policy = policy_of(llama(initializer_range=0.4))
    sampler = FastSampler(policy, backend="plain")
    before = drawn(policy, sampler, "float32")
    norm = policy.model.get_parameter("model.layers.1.input_layernorm.weight")
    norm.data = norm.data * -1.5
    after = drawn(policy, sampler, "float32")
    assert not torch.equal(before, after)
    assert torch.equal(after, drawn(policy, FastSampler(policy, backend="plain"), "float32"))


def biased(**more: Any) -> PreTrainedModel:
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES | more))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "bias" in name:
                weight.normal_()
    return model


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [llama, biased])
def test_bfloat16_rounds_no_more_than_the_model_does(family: Callable[..., PreTrainedModel], weights: torch.dtype) -> None:
    torch.manual_seed(0)
    policy = policy_of(family(initializer_range=0.2, num_hidden_layers=4).to(weights))
    rollouts, seen = FastSampler(policy, backend="plain").sample(
        policy, [[3, 4], [5]], SamplingParams(group_size=8, max_new_tokens=12, seed=1, keep_hidden=True)
    )[:2]
    scored = score_rows(policy.model, rollouts, temperature=1.0, max_tokens=500, dtype="bfloat16", keep_hidden=True)
    exact = score_rows(policy.model.float(), rollouts, temperature=1.0, max_tokens=500, keep_hidden=True)
    for found, by_the_model, truth in zip(seen[:3], scored[:3], exact[:3], strict=True):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.float32
        rounding = float((by_the_model - truth).abs().mean())
        assert 0 < float((found - truth).abs().mean()) < 1.1 * rounding
        # Roundings at other places: two errors of one size, independent of each other.
        assert float((found - by_the_model).abs().mean()) < 1.5 * rounding

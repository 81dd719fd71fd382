"""Which models are packed, by which rule their logits follow from hidden states, and why others are refused."""

import re
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from engine.packed_cases import CASES, SIZES, llama
from tokencredit.forward import packed
from tokencredit.forward.packed import head_rule, packed_scores, packing_unsupported_reason
from tokencredit.forward.padded import response_logits
from tokencredit.kernels import token_statistics
from tokencredit.kernels.lm_head import HeadRule

ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 24, "initializer_range": 0.5, "bos_token_id": 1, "eos_token_id": 2}


def made(family: type, config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return family(config).double().eval()


def mixtral() -> PreTrainedModel:
    """Experts are chosen by token; in float32, which their products need."""
    return made(MixtralForCausalLM, MixtralConfig(**SIZES, **ENDS, num_local_experts=2, sliding_window=None)).float()


PACKED = {
    "mistral": lambda: made(MistralForCausalLM, MistralConfig(**SIZES, **ENDS, sliding_window=None)),
    "mixtral": mixtral,
    "gpt2": lambda: made(GPT2LMHeadModel, GPT2Config(**GPT, n_positions=64)),
    "gpt-neox": lambda: made(GPTNeoXForCausalLM, GPTNeoXConfig(**{**SIZES, "num_key_value_heads": 4}, **ENDS)),
    "cohere": lambda: made(CohereForCausalLM, CohereConfig(**SIZES, **ENDS, logit_scale=0.25)),
    "granite": lambda: made(GraniteForCausalLM, GraniteConfig(**SIZES, **ENDS, logits_scaling=8.0, attention_multiplier=0.4)),
}
RULES = {"cohere": HeadRule(0.7, scale=0.25), "granite": HeadRule(0.7, scale=0.125)}


@pytest.mark.parametrize("name", PACKED)
def test_other_families_are_packed_by_their_rule(name: str) -> None:
    model, rows = PACKED[name](), CASES["shared"]
    assert packing_unsupported_reason(model) is None
    assert head_rule(model, 0.7) == RULES.get(name, HeadRule(0.7))
    known = token_statistics(response_logits(model, rows.prompts, rows.tokens).logits, rows.tokens, temperature=0.7)
    found = packed_scores(model, *rows, temperature=0.7)
    torch.testing.assert_close(found.logp, known.logp.where(rows.mask, 0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.entropy, known.entropy.where(rows.mask, 0.0), atol=1e-4, rtol=0)


def capped_head() -> PreTrainedModel:
    """Gemma 3 with a soft-cap on its logits and without windows."""
    layers = {"layer_types": ["full_attention"] * 2, "final_logit_softcapping": 2.0}
    return made(Gemma3ForCausalLM, Gemma3TextConfig(**SIZES, **ENDS, **layers, head_dim=8))


def test_a_soft_capped_head_is_scored_under_its_cap() -> None:
    model, rows = capped_head(), CASES["shared"]
    assert head_rule(model, 1.0) == HeadRule(1.0, softcap=2.0)
    known = token_statistics(response_logits(model, rows.prompts, rows.tokens).logits, rows.tokens)
    found = packed_scores(model, *rows, temperature=1.0)
    torch.testing.assert_close(found.logp, known.logp.where(rows.mask, 0.0), atol=1e-4, rtol=0)


def windowed_qwen() -> PreTrainedModel:
    return made(Qwen2ForCausalLM, Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1))


def capped_attention() -> PreTrainedModel:
    """Gemma 2 soft-caps the scores of its attention; under any other name than eager it says so to the attention it calls."""
    model = made(Gemma2ForCausalLM, Gemma2Config(**SIZES, **ENDS, head_dim=8, layer_types=["full_attention"] * 2))
    model.config._attn_implementation = "sdpa"
    return model


def eager() -> PreTrainedModel:
    model = llama()
    model.set_attn_implementation("eager")
    return model


def twisted() -> PreTrainedModel:
    """Something is done to the logits that no field of the config tells."""
    model = llama()
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + torch.arange(24.0))
    return model


def leaking() -> PreTrainedModel:
    """A layer that looks along the row: in a packed one, into the response before."""
    model = llama()
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, out: out + out.cumsum(1))
    return model


REFUSED = {
    "windowed mistral": (lambda: made(MistralForCausalLM, MistralConfig(**SIZES, **ENDS, sliding_window=4)), "a sliding window of 4"),
    "windowed qwen2": (windowed_qwen, "layers of type sliding_attention; all must be full_attention"),
    "gemma2": (capped_attention, "softcap"),
    "gemma3": (lambda: made(Gemma3ForCausalLM, Gemma3TextConfig(**SIZES, **ENDS, head_dim=8)), "layers of type sliding_attention"),
    "lfm2": (lambda: made(Lfm2ForCausalLM, Lfm2Config(**SIZES, layer_types=["conv", "full_attention"])), "layers of type conv"),
    "mamba": (
        lambda: made(MambaForCausalLM, MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=1, vocab_size=24)),
        "attention",
    ),
    "bloom": (lambda: made(BloomForCausalLM, BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=24)), "attention"),
    "phi": (lambda: made(PhiForCausalLM, PhiConfig(**SIZES, **ENDS)), "its head has a bias"),
    "eager": (eager, "its attention is 'eager'; it must be one"),
    "twisted logits": (twisted, "its logits are not explained"),
    "leaking layer": (leaking, "a packed pass gives other hidden states"),
}


@pytest.mark.filterwarnings("ignore:.*fast path is not available.*")
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_would_get_other_numbers_is_refused_with_the_reason(name: str) -> None:
    make, words = REFUSED[name]
    model = make()
    assert words in (packing_unsupported_reason(model) or "")
    assert head_rule(model, 1.0) is None
    with pytest.raises(ValueError, match=rf"{type(model).__name__} cannot be packed: .*{words}"):
        packed_scores(model, *CASES["shared"], temperature=1.0)


def test_a_model_in_training_mode_is_refused_until_it_is_not() -> None:
    model = llama().train()
    assert packing_unsupported_reason(model) == "it is in training mode, where dropout may be active"
    assert packing_unsupported_reason(model.eval()) is None


@pytest.mark.parametrize(
    "problem",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=str,
)
def test_a_trial_that_ran_out_of_memory_says_nothing_of_the_model(problem: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise problem

    model = llama()
    with monkeypatch.context() as patch:
        patch.setattr(packed, "packed_hidden", failing)
        with pytest.raises(RuntimeError, match=re.escape(str(problem))):
            packing_unsupported_reason(model)
    assert packing_unsupported_reason(model) is None


def test_a_trial_that_failed_otherwise_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("shape '[2]' is invalid")

    model = llama()
    with monkeypatch.context() as patch:
        patch.setattr(packed, "packed_hidden", failing)
        assert packing_unsupported_reason(model) == "a packed pass fails: shape '[2]' is invalid"
    assert packing_unsupported_reason(model) == "a packed pass fails: shape '[2]' is invalid"


def test_each_model_is_tried_once_and_forgotten_with_it() -> None:
    model, passes = llama(), []
    model.model.register_forward_hook(lambda *_: passes.append(1))
    known = len(packed._probed)
    for _ in range(3):
        assert packing_unsupported_reason(model) is None
    assert len(passes) == 4, "one packed pass, and each of three rows alone"
    assert len(packed._probed) == known + 1
    del model
    import gc

    gc.collect()
    assert len(packed._probed) <= known

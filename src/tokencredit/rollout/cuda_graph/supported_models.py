"""Models that the decode step supports, and their weights. Every other model is refused with a reason."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.kernels import triton_unavailable_reason

MODELS = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""RMS norms before attention and MLP, rotary positions, grouped queries, a gated SiLU; optional query-key norms and biases."""
STEADY_ROTARY = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary types whose angles do not depend on the sequence length."""
HEAD_SIZES = (32, 64, 128, 256)
MOST_QUERY_HEADS = 64
"""Query heads per key-value head."""


class Layer(NamedTuple):
    input_norm: Tensor
    qkv: tuple[Tensor, Tensor, Tensor]
    biases: tuple[Tensor, Tensor, Tensor] | None
    head_norms: tuple[Tensor, Tensor] | None
    out: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class DecoderWeights(NamedTuple):
    """The weights and constants of a supported model."""

    layers: tuple[Layer, ...]
    embeddings: Tensor
    final_norm: Tensor
    head: Tensor
    rotary: torch.nn.Module
    eps: float
    scale: float
    kv_heads: int
    head_dim: int

    @property
    def hidden(self) -> int:
        return self.embeddings.shape[1]

    @property
    def vocabulary(self) -> int:
        return self.head.shape[0]

    @property
    def q_width(self) -> int:
        return self.layers[0].qkv[0].shape[0]

    @property
    def next_norms(self) -> tuple[Tensor, ...]:
        """For each layer, the norm that reads its output."""
        return (*(layer.input_norm for layer in self.layers[1:]), self.final_norm)

    @property
    def ffn(self) -> int:
        return self.layers[0].gate.shape[0]


def unsupported_model_reason(model: PreTrainedModel) -> str | None:
    """Why the decode step cannot run this model; None: it can."""
    kind = type(model)
    if kind.__name__ not in MODELS or not kind.__module__.startswith("transformers.models."):
        return f"{kind.__name__} is not one of {', '.join(sorted(MODELS))}"
    config: Any = model.config
    if getattr(config, "hidden_act", None) != "silu":
        return f"its activation is {config.hidden_act!r}, not 'silu'"
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return "some of its layers do not use full attention"
    if kind.__name__ == "MistralForCausalLM" and config.sliding_window is not None:
        return f"it attends to a window of {config.sliding_window} tokens"
    body: Any = model.model
    if body.rotary_emb.rope_type not in STEADY_ROTARY:
        return f"its rotary positions are {body.rotary_emb.rope_type!r}, whose angles depend on the length"
    unsupported = next(_unsupported_parts(cast(Any, model)), None)
    return unsupported or _unsupported_shape_reason(decoder_weights(model))


def _unsupported_parts(model: Any) -> Iterator[str]:
    norm = type(model.model.norm)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        biased = (attention.q_proj, attention.k_proj, attention.v_proj)
        plain = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        for part in (*biased, *plain):
            # With an adapter or quantisation, `weight` is not the matrix that is applied.
            if type(part) is not torch.nn.Linear:
                yield f"a linear layer is a {type(part).__name__}, which has more than a weight"
        if any(part.bias is not None for part in plain):
            yield "its output or MLP matrices have biases"
        if len({part.bias is None for part in biased}) != 1:
            yield "some of its query, key and value matrices have biases and some have none"
        if {type(layer.input_layernorm), type(layer.post_attention_layernorm)} != {norm}:
            yield "its norms are of several kinds"
    if type(model.lm_head) is not torch.nn.Linear or model.lm_head.bias is not None:
        yield "its LM head is more than a matrix"
    if type(model.model.embed_tokens) is not torch.nn.Embedding:
        yield f"its embeddings are a {type(model.model.embed_tokens).__name__}"
    if any(not parameter.is_contiguous() or parameter.dtype != model.dtype for parameter in model.parameters()):
        yield "its weights are of several types or not contiguous"


def _unsupported_shape_reason(body: DecoderWeights) -> str | None:
    cos, _ = body.rotary(body.embeddings, torch.zeros(1, 1, dtype=torch.long, device=body.embeddings.device))
    return None if cos.shape[-1] == body.head_dim else f"only {cos.shape[-1]} of the {body.head_dim} dimensions of a head are rotated"


def unsupported_kernel_reason(body: DecoderWeights, compute: torch.dtype) -> str | None:
    """Why the Triton kernels cannot run this model; None: they can. The reference kernels run every supported model."""
    if body.embeddings.device.type != "cuda":
        return "the model is not on a CUDA device"
    if (missing := triton_unavailable_reason()) is not None:
        return missing
    if compute not in (torch.bfloat16, torch.float32):
        return f"it computes in {compute}; bfloat16 and float32 are supported"
    if body.head_dim not in HEAD_SIZES:
        return f"its head size is {body.head_dim}; {', '.join(map(str, HEAD_SIZES))} are supported"
    if body.q_width // (body.kv_heads * body.head_dim) > MOST_QUERY_HEADS:
        return f"more than {MOST_QUERY_HEADS} query heads share a key"
    return None


def decoder_weights(model: PreTrainedModel) -> DecoderWeights:
    """The weights of a model for which `unsupported_model_reason` is None."""
    causal_lm: Any = model
    body = causal_lm.model
    attention = body.layers[0].self_attn
    head_dim = int(attention.head_dim)
    return DecoderWeights(
        layers=tuple(map(_layer, body.layers)),
        embeddings=body.embed_tokens.weight.detach(),
        final_norm=body.norm.weight.detach(),
        head=causal_lm.lm_head.weight.detach(),
        rotary=body.rotary_emb,
        eps=float(body.norm.variance_epsilon),
        scale=float(attention.scaling),
        kv_heads=attention.k_proj.weight.shape[0] // head_dim,
        head_dim=head_dim,
    )


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    normed = hasattr(attention, "q_norm")
    q, k, v = (part.weight.detach() for part in projections)
    return Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=(q, k, v),
        biases=None if attention.q_proj.bias is None else tuple(part.bias.detach() for part in projections),
        head_norms=(attention.q_norm.weight.detach(), attention.k_norm.weight.detach()) if normed else None,
        out=attention.o_proj.weight.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate=mlp.gate_proj.weight.detach(),
        up=mlp.up_proj.weight.detach(),
        down=mlp.down_proj.weight.detach(),
    )

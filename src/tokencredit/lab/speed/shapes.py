"""Model shapes that are measured, with random weights, and the arithmetic a pass over them takes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config

from tokencredit.errors import ConfigError
from tokencredit.text import nearest


class Shape(NamedTuple):
    """A decoder with grouped-query attention, a gated MLP and a head tied to the embedding."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    family: str = "llama"

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def body(self) -> int:
        """Weights of the matrix products in all layers."""
        return self.layers * (2 * self.width * self.width + 2 * self.width * self.kv_width + 3 * self.width * self.mlp)

    @property
    def head(self) -> int:
        return self.width * self.vocab


TINY = Shape("tiny", layers=4, width=32, heads=4, kv_heads=2, mlp=64, vocab=512)
SMOLLM2_135M = Shape("smollm2-135m", layers=30, width=576, heads=9, kv_heads=3, mlp=1536, vocab=49_152)
QWEN2_500M = Shape("qwen2-0.5b", layers=24, width=896, heads=14, kv_heads=2, mlp=4864, vocab=151_936, family="qwen2")
SHAPES = {shape.name: shape for shape in (TINY, SMOLLM2_135M, QWEN2_500M)}


def find_shapes(names: str) -> tuple[Shape, ...]:
    """Names with commas between them."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in SHAPES:
            raise ConfigError(f"shapes names {name!r}; {nearest(name, SHAPES)}")
    if not asked:
        raise ConfigError(f"shapes is empty; name at least one of {', '.join(SHAPES)}")
    return tuple(SHAPES[name] for name in dict.fromkeys(asked))


def config_of(shape: Shape, *, positions: int) -> LlamaConfig | Qwen2Config:
    knobs: dict[str, Any] = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return Qwen2Config(**knobs) if shape.family == "qwen2" else LlamaConfig(**knobs)


def build_model(
    shape: Shape, *, device: torch.device, positions: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Random weights, the same for the same seed and device."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config_of(shape, positions=positions), dtype=dtype)
    return model.eval()


class Row(NamedTuple):
    """Tokens of one row: all that go through the layers, and those whose log-prob is wanted."""

    tokens: int
    predicted: int


def forward_flops(shape: Shape, rows: Sequence[Row]) -> float:
    """2 per multiply-add: every token through the layers, causal attention of its row, the head on predicted tokens.

    A row of n tokens has n (n + 1) / 2 pairs; scores and values each take 2 x width per pair and layer.
    """
    tokens, predicted = sum(row.tokens for row in rows), sum(row.predicted for row in rows)
    pairs = sum(row.tokens * (row.tokens + 1) / 2 for row in rows)
    return 2.0 * shape.body * tokens + 4.0 * shape.layers * shape.width * pairs + 2.0 * shape.head * predicted


def update_flops(shape: Shape, rows: Sequence[Row]) -> float:
    """One scoring pass (1 forward) and one pass with its backward (3 forwards); what is computed again does not count."""
    return 4.0 * forward_flops(shape, rows)

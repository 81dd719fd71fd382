"""Small models in float64 to the last step, ragged rows, and flash attention written out, for the tests of packed passes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SIZES = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
}


class Rows(NamedTuple):
    prompts: list[tuple[int, ...]]
    tokens: Tensor
    mask: Tensor


def llama() -> PreTrainedModel:
    return exact(LlamaForCausalLM(LlamaConfig(**SIZES)))


def qwen2() -> PreTrainedModel:
    """With biases on queries, keys and values."""
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    return exact(model)


def qwen3() -> PreTrainedModel:
    """With norms on queries and keys."""
    return exact(Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)))


MODELS = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3}


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """The norms of these models compute in float32 whatever their weights are; here they are torch's, which do not."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                own = torch.nn.RMSNorm(len(child.weight), eps=child.variance_epsilon)
                torch.nn.init.normal_(own.weight, mean=1.0, std=0.3)
                setattr(parent, name, own)
    return model.double().eval()


def ragged(prompts: list[tuple[int, ...]], lengths: list[int], holes: tuple[tuple[int, int], ...] = (), width: int | None = None) -> Rows:
    """Responses of these lengths; a hole is a token of the environment, which is read and not scored."""
    width = max(lengths) if width is None else width
    tokens = torch.randint(3, 24, (len(prompts), width), generator=torch.Generator().manual_seed(len(prompts)))
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    for hole in holes:
        mask[hole] = False
    return Rows(prompts, tokens, mask)


LONG, SHORT, OTHER = (3, 4, 5, 6, 7, 8, 9, 10, 11), (5, 6), (9, 8, 7, 6)
CASES = {
    "shared": ragged([LONG] * 3 + [SHORT] * 2 + [OTHER], [7, 3, 5, 2, 8, 6]),
    "different": ragged([LONG, SHORT, OTHER, (4,)], [4, 7, 1, 3]),
    "scattered": ragged([LONG, SHORT, LONG, OTHER, SHORT], [2, 6, 6, 1, 3]),
    "turns": ragged([LONG, LONG, SHORT], [8, 6, 7], holes=((0, 0), (0, 3), (0, 4), (1, 5), (2, 0), (2, 1))),
    "empty rows": ragged([SHORT, LONG, LONG, LONG, OTHER], [0, 5, 0, 3, 0], width=6),
    "width one": ragged([LONG, LONG, SHORT], [1, 1, 1]),
    "one token among longer": ragged([LONG, LONG, LONG], [1, 4, 1]),
    "one row": ragged([OTHER], [5]),
}


def allowed(query_starts: Tensor, key_starts: Tensor) -> Tensor:
    """Pair by pair: one segment, and the key no nearer to its end than the query is."""
    pairs = torch.zeros(int(query_starts[-1]), int(key_starts[-1]), dtype=torch.bool)
    for segment in range(len(query_starts) - 1):
        queries, keys = (range(int(starts[segment]), int(starts[segment + 1])) for starts in (query_starts, key_starts))
        for query in queries:
            for key in keys:
                pairs[query, key] = keys.stop - key >= queries.stop - query
    return pairs


def dense_forward(query: Tensor, key: Tensor, value: Tensor, *lengths: Any, scale: float) -> tuple[Tensor, Tensor]:
    """What flash attention gives, over all pairs at once: the output, and the log-sum-exp as heads x queries."""
    if isinstance(query, FakeTensor):
        return torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0])
    assert max(lengths[0].diff()) == lengths[2]
    assert max(lengths[1].diff()) == lengths[3]
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    scores = scores.masked_fill(~allowed(*lengths[:2]), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).contiguous(), scores.logsumexp(-1)


def dense_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *known: Any, scale: float) -> tuple[Tensor, ...]:
    output, log_sum, *starts = known[:4]
    groups = query.shape[1] // key.shape[1]
    keys, values = (each.repeat_interleave(groups, 1) for each in (key, value))
    p = (torch.einsum("qhd,khd->hqk", query, keys) * scale - log_sum[..., None]).exp() * allowed(*starts)
    error = p * (torch.einsum("qhd,khd->hqk", gradient, values) - (gradient * output).sum(-1).T[..., None]) * scale
    to_keys, to_values = torch.einsum("hqk,qhd->khd", error, query), torch.einsum("hqk,qhd->khd", p, gradient)
    folded = (each.unflatten(1, (-1, groups)).sum(2) for each in (to_keys, to_values))
    return torch.einsum("hqk,khd->qhd", error, keys).contiguous(), *folded

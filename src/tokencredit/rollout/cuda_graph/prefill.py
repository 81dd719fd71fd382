"""Reading prompts: every different one once, by the pieces of a decode step, keys and values kept for all rows that answer it."""

from collections.abc import Sequence
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tokencredit.kernels.decode.reference import normed, squares_of, turned, weighted_of
from tokencredit.rollout.cuda_graph.buffers import Workspace
from tokencredit.rollout.cuda_graph.supported_models import Anatomy, Layer

TOKENS_IN_A_PASS = 32768


def read_prompts(kernels: ModuleType, body: Anatomy, space: Workspace, prompts: Sequence[Sequence[int]]) -> Float[Tensor, "prompt hid"]:
    """What the LM head would be given behind each prompt; keys and values go into the workspace."""
    longest = max(map(len, prompts))
    at_once = max(1, TOKENS_IN_A_PASS // longest)
    parts = [_read(kernels, body, space, prompts[first : first + at_once], first) for first in range(0, len(prompts), at_once)]
    return torch.cat(parts)


def _read(kernels: ModuleType, body: Anatomy, space: Workspace, prompts: Sequence[Sequence[int]], first: int) -> Tensor:
    device, count, width = space.x.device, len(prompts), max(map(len, prompts))
    # Filled up on the right, where causal attention never looks, so no mask is needed and places count from 0.
    ids = torch.tensor([[*prompt, *[prompt[-1]] * (width - len(prompt))] for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids, lengths = (value.to(device, non_blocking=True) for value in (ids, lengths))
    space.prompt_length[first : first + count] = lengths
    x = body.embeddings[ids.flatten()]
    squares, compute = squares_of(x), space.weighted.dtype
    weighted = weighted_of(x, body.layers[0].input_norm, compute)
    qkv, active = (torch.empty(len(x), size.shape[1], dtype=compute, device=device) for size in (space.qkv, space.active))
    for number, (layer, next_norm) in enumerate(zip(body.layers, body.next_norms, strict=True)):
        kernels.norm_linear(weighted, squares, layer.qkv, layer.biases, qkv, eps=body.eps)
        attended = _attend(qkv.view(count, width, -1), layer, body, space, number, first)
        kernels.linear_add(attended, layer.out, x, squares, layer.mlp_norm, weighted)
        kernels.norm_gate_up(weighted, squares, layer.gate, layer.up, active, eps=body.eps)
        kernels.linear_add(active, layer.down, x, squares, next_norm, weighted)
    last = torch.arange(count, device=device) * width + lengths - 1
    return normed(x[last], squares[last], body.final_norm, body.eps)


def _attend(
    qkv: Float[Tensor, "prompt tok all"], layer: Layer, body: Anatomy, space: Workspace, number: int, first: int
) -> Float[Tensor, "all_tok q"]:
    count, width, _ = qkv.shape
    heads = qkv.unflatten(2, (-1, body.head_dim)).transpose(1, 2)
    queries = heads.shape[1] - 2 * body.kv_heads
    norms = layer.head_norms and torch.cat(
        [norm.expand(size, 1, -1) for norm, size in zip(layer.head_norms, (queries, body.kv_heads), strict=True)]
    )
    cos, sin = (table[:width] for table in space.rotary)
    q, k = turned(heads[:, : -body.kv_heads], norms, cos, sin, body.eps).split([queries, body.kv_heads], 1)
    keys, values = (cache[number, first : first + count, :, :width] for cache in (space.prompt_k, space.prompt_v))
    keys.copy_(k)
    values.copy_(heads[:, -body.kv_heads :])
    attended = functional.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=body.scale, enable_gqa=True)
    return attended.transpose(1, 2).reshape(count * width, -1)

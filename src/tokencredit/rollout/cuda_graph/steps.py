"""Prefill of prompts and decode steps, run kernel by kernel or replayed as a CUDA graph.

A replay takes no arguments, because everything that changes between steps is on the device.
"""

from collections.abc import Sequence
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tokencredit.kernels.decode.reference import normed, squares_of, turned, weighted_of
from tokencredit.kernels.decode.state import HeadNorm, Slots, Statistics
from tokencredit.rollout.cuda_graph.buffers import Workspace
from tokencredit.rollout.cuda_graph.supported_models import DecoderWeights, Layer


def draw_tokens(kernels: ModuleType, body: DecoderWeights, space: Workspace, count: int) -> None:
    """From LM-head inputs to sampled tokens, in the first `count` slots."""
    slots = Slots(*(tensor[:count] for tensor in space.slots))
    statistics = Statistics(*(tensor[:count] for tensor in space.statistics))
    kernels.head(space.normed[:count], body.head, space.knobs.temperature, space.logits[:count], statistics)
    x, squares, weighted = (tensor[:count] for tensor in (space.x, space.squares, space.weighted))
    norm = body.layers[0].input_norm
    kernels.draw(space.logits[:count], statistics, space.knobs, slots, space.written, body.embeddings, x, squares, norm, weighted)


def decode_step(kernels: ModuleType, body: DecoderWeights, space: Workspace, count: int, keep_hidden: bool) -> None:
    """Run the last token of each of the first `count` slots through all layers, and sample the next one."""
    x, squares, weighted, qkv = (tensor[:count] for tensor in (space.x, space.squares, space.weighted, space.qkv))
    attended, active = space.attended[:count], space.active[:count]
    slots, eps = Slots(*(tensor[:count] for tensor in space.slots)), body.eps
    for number, (layer, next_norm) in enumerate(zip(body.layers, body.next_norms, strict=True)):
        norms = HeadNorm(*layer.head_norms) if layer.head_norms else None
        kernels.norm_linear(weighted, squares, layer.qkv, layer.biases, qkv, eps=eps)
        kernels.attend(qkv, norms, space.rotary, space.keys(number), slots, space.written, attended, eps=eps, scale=body.scale)
        kernels.linear_add(attended, layer.out, x, squares, layer.mlp_norm, weighted)
        kernels.norm_gate_up(weighted, squares, layer.gate, layer.up, active, eps=eps)
        kernels.linear_add(active, layer.down, x, squares, next_norm, weighted)
    kept = space.kept if keep_hidden else None
    kernels.final_norm(x, squares, body.final_norm, space.normed[:count], kept, slots, space.written, eps=eps)
    draw_tokens(kernels, body, space, count)


class Steps:
    """Steps over one workspace. The first step of a size runs kernel by kernel, which compiles the kernels, and is then captured."""

    def __init__(self, kernels: ModuleType, body: DecoderWeights, space: Workspace) -> None:
        self.kernels, self.body, self.space = kernels, body, space
        self._captures = space.x.is_cuda and kernels.__name__.endswith("fast")
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    def run(self, count: int, keep_hidden: bool) -> None:
        graph = self._graphs.get((count, keep_hidden))
        if graph is not None:
            graph.replay()
            return
        decode_step(self.kernels, self.body, self.space, count, keep_hidden)
        if self._captures:
            self._graphs[count, keep_hidden] = self._capture(count, keep_hidden)

    def _capture(self, count: int, keep_hidden: bool) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Grading threads may use the device during the capture.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                decode_step(self.kernels, self.body, self.space, count, keep_hidden)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph


def slot_counts(rows: int) -> list[int]:
    """Sizes a batch may shrink through as rows end: a half and three quarters of powers of two, multiples of 8."""
    counts = [-(-rows // 8) * 8]
    size = 1 << (rows - 1).bit_length()
    while size > 8:
        counts += [count for count in (size * 3 // 4, size // 2) if count < counts[-1] and count % 8 == 0]
        size //= 2
    return counts


PREFILL_TOKENS = 32768


def read_prompts(
    kernels: ModuleType, body: DecoderWeights, space: Workspace, prompts: Sequence[Sequence[int]]
) -> Float[Tensor, "prompt hid"]:
    """Prefill each distinct prompt once; its keys and values go into the workspace for all rows of the prompt.

    Returns the LM-head input after each prompt.
    """
    longest = max(map(len, prompts))
    at_once = max(1, PREFILL_TOKENS // longest)
    parts = [_prefill(kernels, body, space, prompts[first : first + at_once], first) for first in range(0, len(prompts), at_once)]
    return torch.cat(parts)


def _prefill(kernels: ModuleType, body: DecoderWeights, space: Workspace, prompts: Sequence[Sequence[int]], first: int) -> Tensor:
    device, count, width = space.x.device, len(prompts), max(map(len, prompts))
    # Padded on the right, which causal attention never reads, so no mask is needed and positions count from 0.
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
    qkv: Float[Tensor, "prompt tok all"], layer: Layer, body: DecoderWeights, space: Workspace, number: int, first: int
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

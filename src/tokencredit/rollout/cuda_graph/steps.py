"""One decode step, run piece by piece or replayed as a graph: a replay needs no arguments, since all that changes is on the device."""

from types import ModuleType

import torch

from tokencredit.kernels.decode.state import HeadNorm, Slots, Statistics
from tokencredit.rollout.cuda_graph.buffers import Workspace
from tokencredit.rollout.cuda_graph.supported_models import Anatomy


def draw_tokens(kernels: ModuleType, body: Anatomy, space: Workspace, count: int) -> None:
    """From what the LM head is given to tokens, in the first `count` slots."""
    slots = Slots(*(tensor[:count] for tensor in space.slots))
    statistics = Statistics(*(tensor[:count] for tensor in space.statistics))
    kernels.head(space.normed[:count], body.head, space.knobs.temperature, space.logits[:count], statistics)
    x, squares, weighted = (tensor[:count] for tensor in (space.x, space.squares, space.weighted))
    norm = body.layers[0].input_norm
    kernels.draw(space.logits[:count], statistics, space.knobs, slots, space.written, body.embeddings, x, squares, norm, weighted)


def decode_step(kernels: ModuleType, body: Anatomy, space: Workspace, count: int, keep_hidden: bool) -> None:
    """The token drawn last in each of the first `count` slots through all layers, and the next token drawn."""
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
    """Steps over one workspace. The first of a size is run piece by piece, which compiles what it needs, and captured for the next."""

    def __init__(self, kernels: ModuleType, body: Anatomy, space: Workspace) -> None:
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
            # Threads that grade may use the device meanwhile.
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

"""The buffers of a decode step, allocated once so that captured graphs stay valid, and the weights in the compute dtype."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.kernels import at_least_float32
from tokencredit.kernels.decode.state import VOCABULARY_BLOCK, Keys, Knobs, Rotary, Slots, Statistics, Written, blocks, square_tile
from tokencredit.rollout.cuda_graph.supported_models import DecoderWeights, Layer, decoder_weights

PROMPT_TOKEN_BLOCK = 64
"""Capacity for prompt tokens is rounded up to this, because prompt lengths differ from step to step."""
MOST_ENDS = 16


class Room(NamedTuple):
    """Capacity of a workspace: number and length of distinct prompts, number and length of responses."""

    prompts: int
    prompt_tokens: int
    rows: int
    new_tokens: int
    keeps_hidden: bool = False

    def holds(self, other: "Room") -> bool:
        return all(have >= want for have, want in zip(self, other, strict=True))

    def rounded(self) -> "Room":
        return self._replace(
            prompt_tokens=blocks(self.prompt_tokens, PROMPT_TOKEN_BLOCK) * PROMPT_TOKEN_BLOCK, rows=blocks(self.rows, 8) * 8
        )

    def union(self, other: "Room") -> "Room":
        """Capacity for either."""
        *sizes, _ = (max(pair) for pair in zip(self, other, strict=True))
        return Room(*sizes, keeps_hidden=self.keeps_hidden or other.keeps_hidden)


def bytes_per_token(body: DecoderWeights, compute: torch.dtype) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return 2 * len(body.layers) * body.kv_heads * body.head_dim * compute.itemsize


def bytes_for(body: DecoderWeights, compute: torch.dtype, room: Room) -> int:
    """Memory of a workspace, without its small buffers."""
    keys = bytes_per_token(body, compute) * (room.prompts * room.prompt_tokens + room.rows * room.new_tokens)
    states = room.rows * room.new_tokens * body.hidden * 4 if room.keeps_hidden else 0
    return keys + states + room.rows * body.vocabulary * 4


class Workspace:
    """All tensors that a decode step reads or writes."""

    def __init__(self, body: DecoderWeights, room: Room, compute: torch.dtype) -> None:
        stream, device = body.embeddings.dtype, body.embeddings.device
        self.room = room
        layers, slots = len(body.layers), room.rows
        exact = at_least_float32(torch.zeros(0, dtype=compute)).dtype

        def empty(*shape: int, dtype: torch.dtype = compute) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.prompt_k, self.prompt_v = (empty(layers, room.prompts, body.kv_heads, room.prompt_tokens, body.head_dim) for _ in range(2))
        self.own_k, self.own_v = (empty(layers, room.rows, body.kv_heads, room.new_tokens, body.head_dim) for _ in range(2))
        self.prompt_length = empty(room.prompts, dtype=torch.int32)
        self.x = empty(slots, body.hidden, dtype=stream)
        self.squares = empty(slots, blocks(body.hidden, square_tile(body.hidden)), dtype=exact)
        self.weighted = empty(slots, body.hidden)
        self.qkv = empty(slots, body.q_width + 2 * body.kv_heads * body.head_dim)
        self.attended = empty(slots, body.q_width)
        self.active = empty(slots, body.ffn)
        self.normed = empty(slots, body.hidden)
        self.logits = empty(slots, body.vocabulary, dtype=exact)
        count = blocks(body.vocabulary, VOCABULARY_BLOCK)
        self.statistics = Statistics(*(empty(slots, count, dtype=exact) for _ in range(3)))
        self.slots = Slots(*(empty(slots, dtype=torch.int32) for _ in range(3)))
        self.written = Written(
            tokens=empty(room.rows, room.new_tokens, dtype=torch.long),
            logp=empty(room.rows, room.new_tokens, dtype=exact),
            entropy=empty(room.rows, room.new_tokens, dtype=exact),
            length=empty(room.rows, dtype=torch.int32),
            ended=empty(room.rows, dtype=torch.int32),
            bad=empty(room.rows, dtype=torch.int32),
        )
        self.knobs = Knobs(
            temperature=empty(1, dtype=exact),
            greedy=empty(1, dtype=torch.int32),
            seed=empty(1, dtype=torch.long),
            first_row=empty(1, dtype=torch.int32),
            ends=empty(MOST_ENDS, dtype=torch.long),
        )
        self.kept = empty(room.rows, room.new_tokens, body.hidden, dtype=exact) if room.keeps_hidden else None
        self.rotary = _rotary(body, room.prompt_tokens + room.new_tokens)

    def keys(self, layer: int) -> Keys:
        return Keys(self.prompt_k[layer], self.prompt_v[layer], self.own_k[layer], self.own_v[layer], self.prompt_length)

    def assign_slots(self, prompt_of_row: Sequence[int]) -> None:
        """Reset: row i takes slot i, the remaining slots are free, and no token is written."""
        rows, device = len(prompt_of_row), self.x.device
        for tensor in self.written:
            tensor.zero_()
        self.slots.row.fill_(-1)
        self.slots.prompt.zero_()
        self.slots.position.zero_()
        self.slots.row[:rows] = torch.arange(rows, dtype=torch.int32, device=device)
        self.slots.prompt[:rows] = torch.tensor(prompt_of_row, dtype=torch.int32, device=device)

    def set_knobs(self, *, temperature: float, greedy: bool, seed: int, first_row: int, ends: Sequence[int]) -> None:
        self.knobs.temperature.fill_(temperature)
        self.knobs.greedy.fill_(int(greedy))
        self.knobs.seed.fill_(seed % 2**63)
        self.knobs.first_row.fill_(first_row)
        self.knobs.ends.copy_(torch.tensor([*ends, *[-1] * (MOST_ENDS - len(ends))]))

    def compact(self, slots: int) -> None:
        """Move unfinished rows into the first `slots` slots, in order. The permutation is computed on the device."""
        rows = self.slots.row.long()
        finished = (rows < 0) | (self.written.ended[rows.clamp(min=0)] != 0)
        order = finished.int().sort(stable=True).indices[:slots]
        for tensor in (*self.slots, self.x, self.squares, self.weighted):
            tensor[:slots] = tensor[order]
        self.slots.row[slots:] = -1


def _rotary(body: DecoderWeights, length: int) -> Rotary:
    """The model's own rotary angles, rounded as the model rounds them under bfloat16 weights."""
    positions = torch.arange(length, device=body.embeddings.device)[None]
    cos, sin = (
        at_least_float32(table[0, :, : body.head_dim // 2]).contiguous() for table in body.rotary(body.embeddings[:1, None], positions)
    )
    return Rotary(cos, sin)


class Weights:
    """The matrices of a decode step in the compute dtype.

    Under autocast, float32 matrices are copied to bfloat16 (2 bytes per parameter) and refreshed in place once per call. bfloat16
    weights are used directly. Norms and embeddings are never copied, because the model does not round them.
    """

    def __init__(self, model: PreTrainedModel, compute: torch.dtype) -> None:
        self.compute = compute
        self.own = decoder_weights(model)
        self._data_pointers = _data_pointers(model)
        self._copies = [matrix.to(compute) for matrix in _matrices(self.own)] if model.dtype != compute else []
        self.used = _with_matrices(self.own, iter(self._copies)) if self._copies else self.own

    def refresh(self) -> None:
        if self._copies:
            torch._foreach_copy_(self._copies, list(_matrices(self.own)))  # pyright: ignore[reportPrivateImportUsage]

    def still_of(self, model: PreTrainedModel) -> bool:
        """Whether the model's tensors still have the addresses that the captured steps use."""
        return _data_pointers(model) == self._data_pointers


def _data_pointers(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]


def _matrices(body: DecoderWeights) -> Iterator[Tensor]:
    yield body.head
    for layer in body.layers:
        yield from (*layer.qkv, *(layer.biases or ()), layer.out, layer.gate, layer.up, layer.down)


def _with_matrices(body: DecoderWeights, copies: Iterator[Tensor]) -> DecoderWeights:
    """The same weights with other matrices, in the order of `_matrices`."""
    head = next(copies)
    return body._replace(head=head, layers=tuple(_layer_with(layer, copies) for layer in body.layers))


def _layer_with(layer: Layer, copies: Iterator[Tensor]) -> Layer:
    qkv = (next(copies), next(copies), next(copies))
    biases = None if layer.biases is None else (next(copies), next(copies), next(copies))
    return layer._replace(qkv=qkv, biases=biases, out=next(copies), gate=next(copies), up=next(copies), down=next(copies))

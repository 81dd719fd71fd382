"""Pack responses into one row without padding, with each distinct prompt once: the input of a padding-free pass.

    prompt A | prompt B | response 1 of A | response 2 of A | response 1 of B | ...

A segment is a run of tokens that attends to one run of keys: a prompt to itself, a response to its prompt and to itself, causally.
Where sharing saves too little, each response is preceded by its own copy of the prompt, and queries and keys are the same tokens.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

SHARING_PAYS = 0.95
"""Prompts are shared where at most this fraction of the tokens remains; keys of shared prompts are copied in every layer."""


class SharedKeys(NamedTuple):
    """Which packed tokens are the keys of each segment, where several segments share keys."""

    source: Int[Tensor, " key"]
    """Index of the packed token of each key."""
    own: Int[Tensor, " packed"]
    """Index of the key of each packed token in its own segment."""
    copy: Int[Tensor, " copied"]
    """Keys that are tokens of another segment: a shared prompt, once for each of its responses."""
    copied: Int[Tensor, " copied"]
    """Index of the packed token of each copy."""
    prompt_tokens: int
    """Number of tokens of shared prompts, which come first."""


class Segments(NamedTuple):
    """Segment boundaries for attention. Queries and keys are both ordered by segment."""

    query_starts: Int[Tensor, " seg+1"]
    key_starts: Int[Tensor, " seg+1"]
    longest_query: int
    longest_key: int
    shared: SharedKeys | None
    """None where keys are the packed tokens themselves."""
    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]


class PackedLayout(NamedTuple):
    """The rows of a micro-batch as one packed row, and the position whose hidden state predicts each sampled token."""

    ids: Int[Tensor, "1 packed"]
    positions: Int[Tensor, "1 packed"]
    segments: Segments
    head_rows: Int[Tensor, " sampled"]
    """Index of the packed token that predicts each sampled token; for the first token of a response, the last of its prompt."""
    flat_index: Int[Tensor, " sampled"]
    """Index of each sampled token in the flattened responses x tokens."""
    targets: Int[Tensor, " sampled"]
    shape: tuple[int, int]


def pack(
    prompts: Sequence[Sequence[int]], tokens: Int[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"], device: torch.device
) -> PackedLayout:
    """Pack rows up to their last sampled token, without rows that have none; built on the host, moved to the device in one copy.

    `mask` is True for sampled tokens; other tokens of a response are read but not scored. Tokens and mask on a device are copied
    to the host first, which synchronizes: pass host tensors where they are available, or keep the layout.
    """
    if not all(prompts):
        raise ValueError(f"the prompt of response {next(row for row, prompt in enumerate(prompts) if not prompt)} is empty")
    tokens, mask = tokens.cpu(), mask.cpu()
    rows, width = mask.shape
    extent = (torch.arange(1, width + 1) * mask).amax(-1) if mask.numel() else torch.zeros(rows, dtype=torch.long)
    different, of_row, shared = _distinct_prompts(prompts, extent)
    prompt_tokens = torch.tensor(list(chain.from_iterable(different)), dtype=torch.long)
    prompt_length = torch.tensor([len(prompt) for prompt in different], dtype=torch.long)
    before, after = prompt_length[of_row], (extent - 1).clamp(min=0)

    # A segment is part of a prompt followed by part of a response, either of them empty: shared prompts first, then every row.
    alone = prompt_length if shared else prompt_length[:0]
    nothing = torch.zeros_like(alone)
    in_row = torch.zeros_like(before) if shared else before * (extent > 0)
    prompt_piece, response_piece = torch.cat([alone, in_row]), torch.cat([nothing, after])
    prompt_from, response_from = _starts(prompt_length)[:-1], len(prompt_tokens) + torch.arange(rows) * width
    query_length = prompt_piece + response_piece
    query_starts = _starts(query_length)
    froms = torch.cat([prompt_from[: len(alone)], prompt_from[of_row]]), torch.cat([nothing, response_from])
    ids = torch.cat([prompt_tokens, tokens.flatten()])[_ranges(_interleaved(*froms), _interleaved(prompt_piece, response_piece))]

    # The keys of a segment: the shared prompt of another segment, then its own tokens.
    elsewhere = torch.cat([nothing, before * (after > 0) if shared else torch.zeros_like(before)])
    positions = _ranges(elsewhere, query_length)
    key_length = elsewhere + query_length

    # A response begins where its prompt ends; the last prompt token predicts its first token, in whichever segment that prompt is.
    response_starts = (query_starts[:-1] + prompt_piece)[len(alone) :]
    prompt_ends = query_starts[1:][of_row] if shared else response_starts
    row, column = mask.nonzero(as_tuple=True)
    head_rows = torch.where(column == 0, prompt_ends[row], response_starts[row] + column) - 1

    real = query_length > 0
    query_lengths, key_lengths = query_length[real], key_length[real]
    parts = [ids, positions, head_rows, row * width + column, tokens[mask], _starts(query_lengths), _starts(key_lengths)]
    if bool(elsewhere.any()):
        key_starts, prompt_starts = _starts(key_length)[:-1], torch.cat([nothing, query_starts[of_row]])
        source = _ranges(_interleaved(prompt_starts, query_starts[:-1]), _interleaved(elsewhere, query_length))
        copy = _ranges(key_starts, elsewhere)
        parts += [source, _ranges(key_starts + elsewhere, query_length), copy, source[copy]]
    ids, positions, head_rows, flat_index, targets, query_starts, key_starts, *keys = _to_device(parts, device)
    segments = Segments(
        query_starts=query_starts.int(),
        key_starts=key_starts.int(),
        longest_query=int(query_lengths.max()) if len(query_lengths) else 0,
        longest_key=int(key_lengths.max()) if len(key_lengths) else 0,
        shared=SharedKeys(*keys, prompt_tokens=len(prompt_tokens)) if keys else None,
        query_lengths=tuple(query_lengths.tolist()),
        key_lengths=tuple(key_lengths.tolist()),
    )
    return PackedLayout(ids[None], positions[None], segments, head_rows, flat_index, targets, (rows, width))


class _DistinctPrompts(NamedTuple):
    prompts: list[tuple[int, ...]]
    of_row: Int[Tensor, " seq"]
    """Index of each row's prompt; 0 for a row without sampled tokens."""
    shared: bool


def _distinct_prompts(prompts: Sequence[Sequence[int]], extent: Int[Tensor, " seq"]) -> _DistinctPrompts:
    """The distinct prompts of rows with sampled tokens, in order of appearance, and whether to share them."""
    read = [tuple(prompt) for prompt, long in zip(prompts, extent.tolist(), strict=True) if long]
    uses = Counter(read)
    number = {prompt: index for index, prompt in enumerate(uses)}
    of_row = torch.zeros(len(prompts), dtype=torch.long)
    of_row[extent > 0] = torch.tensor([number[prompt] for prompt in read], dtype=torch.long)
    responses = int((extent - 1).clamp(min=0).sum())
    once, each = sum(map(len, uses)) + responses, sum(map(len, read)) + responses
    # Without any such row, one empty prompt keeps the shapes valid.
    return _DistinctPrompts(list(uses) or [()], of_row, once <= SHARING_PAYS * each)


def _starts(lengths: Int[Tensor, " n"]) -> Int[Tensor, " n+1"]:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _ranges(first: Int[Tensor, " n"], lengths: Int[Tensor, " n"]) -> Int[Tensor, " total"]:
    """first[0], first[0] + 1, ..., lengths[0] values, then the range of first[1], and so on."""
    starts = _starts(lengths)
    return torch.repeat_interleave(first - starts[:-1], lengths) + torch.arange(int(starts[-1]))


def _interleaved(one: Int[Tensor, " n"], two: Int[Tensor, " n"]) -> Int[Tensor, " 2*n"]:
    return torch.stack([one, two], 1).flatten()


def _to_device(parts: list[Int[Tensor, " _"]], device: torch.device) -> list[Int[Tensor, " _"]]:
    lengths = [len(part) for part in parts]
    joined = torch.cat(parts)
    if device.type == "cuda":
        joined = joined.pin_memory()
    return list(joined.to(device, non_blocking=True).split(lengths))

"""Responses laid end to end in one row without padding, each different prompt once: what a padding-free pass is given.

    prompt A | prompt B | response 1 of A | response 2 of A | response 1 of B | ...

A segment is a run of tokens that attends to one run of keys: a prompt to itself, a response to its prompt and to itself, causally.
Where sharing saves too little, a prompt stands before each of its responses, and queries and keys are the same tokens.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

SHARING_PAYS = 0.95
"""Prompts are shared where that leaves at most this part of the tokens: keys of shared prompts are copied in every layer."""


class SharedKeys(NamedTuple):
    """Which packed tokens are the keys of each segment, where some are keys of several."""

    source: Int[Tensor, " key"]
    """The packed token each key is."""
    own: Int[Tensor, " packed"]
    """The key each packed token is in its own segment."""
    copy: Int[Tensor, " copied"]
    """Keys that are tokens of another segment: a shared prompt, once for each of its responses."""
    copied: Int[Tensor, " copied"]
    """The packed token each of these is."""
    prompt_tokens: int
    """Shared prompts stand first; so many tokens are theirs."""


class Segments(NamedTuple):
    """What attention needs to know. Queries lie segment after segment, and so do keys, in the same order."""

    query_starts: Int[Tensor, " seg+1"]
    key_starts: Int[Tensor, " seg+1"]
    longest_query: int
    longest_key: int
    shared: SharedKeys | None
    """None where keys are the packed tokens themselves."""
    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]


class PackedLayout(NamedTuple):
    """Rows of a micro-batch as one packed row, and which of its hidden states predict which sampled tokens."""

    ids: Int[Tensor, "1 packed"]
    positions: Int[Tensor, "1 packed"]
    segments: Segments
    head_rows: Int[Tensor, " sampled"]
    """The packed token whose hidden state predicts each sampled token: for the first of a response, the last of its prompt."""
    place: Int[Tensor, " sampled"]
    """Where each sampled token stands in responses x tokens, counted along rows."""
    targets: Int[Tensor, " sampled"]
    shape: tuple[int, int]


def pack(
    prompts: Sequence[Sequence[int]], tokens: Int[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"], device: torch.device
) -> PackedLayout:
    """Rows are packed up to their last sampled token, rows without any are left out; made on the host, moved in one copy.

    `mask` is True for sampled tokens; others inside a response are read and not scored. Tokens and mask that lie on a device are
    fetched first, which waits for it: give those of the host where they are known, or keep the layout.
    """
    if not all(prompts):
        raise ValueError(f"the prompt of response {next(row for row, prompt in enumerate(prompts) if not prompt)} is empty")
    tokens, mask = tokens.cpu(), mask.cpu()
    rows, width = mask.shape
    extent = (torch.arange(1, width + 1) * mask).amax(-1) if mask.numel() else torch.zeros(rows, dtype=torch.long)
    different, of_row, shared = _different(prompts, extent)
    prompt_tokens = torch.tensor(list(chain.from_iterable(different)), dtype=torch.long)
    prompt_length = torch.tensor([len(prompt) for prompt in different], dtype=torch.long)
    before, after = prompt_length[of_row], (extent - 1).clamp(min=0)

    # A segment is a piece of a prompt and then a piece of a response, either of them empty: shared prompts first, then every row.
    alone = prompt_length if shared else prompt_length[:0]
    nothing = torch.zeros_like(alone)
    in_row = torch.zeros_like(before) if shared else before * (extent > 0)
    prompt_piece, response_piece = torch.cat([alone, in_row]), torch.cat([nothing, after])
    prompt_from, response_from = _starts(prompt_length)[:-1], len(prompt_tokens) + torch.arange(rows) * width
    query_length = prompt_piece + response_piece
    query_starts = _starts(query_length)
    froms = torch.cat([prompt_from[: len(alone)], prompt_from[of_row]]), torch.cat([nothing, response_from])
    ids = torch.cat([prompt_tokens, tokens.flatten()])[_ranges(_woven(*froms), _woven(prompt_piece, response_piece))]

    # The keys of a segment: the prompt that stands elsewhere, then its own tokens.
    elsewhere = torch.cat([nothing, before * (after > 0) if shared else torch.zeros_like(before)])
    positions = _ranges(elsewhere, query_length)
    key_length = elsewhere + query_length

    # A response begins where its prompt ends; its first token is predicted by the last of the prompt, wherever that stands.
    response_starts = (query_starts[:-1] + prompt_piece)[len(alone) :]
    prompt_ends = query_starts[1:][of_row] if shared else response_starts
    row, column = mask.nonzero(as_tuple=True)
    head_rows = torch.where(column == 0, prompt_ends[row], response_starts[row] + column) - 1

    real = query_length > 0
    query_lengths, key_lengths = query_length[real], key_length[real]
    parts = [ids, positions, head_rows, row * width + column, tokens[mask], _starts(query_lengths), _starts(key_lengths)]
    if bool(elsewhere.any()):
        key_starts, prompt_starts = _starts(key_length)[:-1], torch.cat([nothing, query_starts[of_row]])
        source = _ranges(_woven(prompt_starts, query_starts[:-1]), _woven(elsewhere, query_length))
        copy = _ranges(key_starts, elsewhere)
        parts += [source, _ranges(key_starts + elsewhere, query_length), copy, source[copy]]
    ids, positions, head_rows, place, targets, query_starts, key_starts, *keys = _moved(parts, device)
    segments = Segments(
        query_starts=query_starts.int(),
        key_starts=key_starts.int(),
        longest_query=int(query_lengths.max()) if len(query_lengths) else 0,
        longest_key=int(key_lengths.max()) if len(key_lengths) else 0,
        shared=SharedKeys(*keys, prompt_tokens=len(prompt_tokens)) if keys else None,
        query_lengths=tuple(query_lengths.tolist()),
        key_lengths=tuple(key_lengths.tolist()),
    )
    return PackedLayout(ids[None], positions[None], segments, head_rows, place, targets, (rows, width))


class _Different(NamedTuple):
    prompts: list[tuple[int, ...]]
    of_row: Int[Tensor, " seq"]
    """Which of them each row has; 0 for a row that is not read."""
    shared: bool


def _different(prompts: Sequence[Sequence[int]], extent: Int[Tensor, " seq"]) -> _Different:
    """The different prompts of rows that are read, in the order in which they come, and whether to share them."""
    read = [tuple(prompt) for prompt, long in zip(prompts, extent.tolist(), strict=True) if long]
    uses = Counter(read)
    number = {prompt: place for place, prompt in enumerate(uses)}
    of_row = torch.zeros(len(prompts), dtype=torch.long)
    of_row[extent > 0] = torch.tensor([number[prompt] for prompt in read], dtype=torch.long)
    responses = int((extent - 1).clamp(min=0).sum())
    once, each = sum(map(len, uses)) + responses, sum(map(len, read)) + responses
    # Where no row is read, one prompt without tokens stands for all.
    return _Different(list(uses) or [()], of_row, once <= SHARING_PAYS * each)


def _starts(lengths: Int[Tensor, " n"]) -> Int[Tensor, " n+1"]:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _ranges(first: Int[Tensor, " n"], lengths: Int[Tensor, " n"]) -> Int[Tensor, " total"]:
    """first[0], first[0] + 1, ... lengths[0] of them, then those of the next."""
    starts = _starts(lengths)
    return torch.repeat_interleave(first - starts[:-1], lengths) + torch.arange(int(starts[-1]))


def _woven(one: Int[Tensor, " n"], two: Int[Tensor, " n"]) -> Int[Tensor, " 2*n"]:
    return torch.stack([one, two], 1).flatten()


def _moved(parts: list[Int[Tensor, " _"]], device: torch.device) -> list[Int[Tensor, " _"]]:
    lengths = [len(part) for part in parts]
    whole = torch.cat(parts)
    if device.type == "cuda":
        whole = whole.pin_memory()
    return list(whole.to(device, non_blocking=True).split(lengths))

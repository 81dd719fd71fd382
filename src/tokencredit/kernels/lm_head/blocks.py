"""How a [tok, vocab] array nobody holds is cut into blocks that fit a buffer."""

from collections.abc import Iterator
from typing import NamedTuple

BUFFER_BYTES = 256 << 20
"""Default bound of the scratch a pass over the head may hold. More makes larger products, which GPUs like, to about 1 GiB."""
MOST_TOKENS = 32_768
ALIGNMENT = 128


class Blocks(NamedTuple):
    tokens: int
    vocab: int


def _even_cut(length: int, most: int) -> int:
    """The size of equal runs no longer than `most`, in whole multiples of the alignment where that fits."""
    if length <= most:
        return length
    size = -(-length // -(-length // most))
    aligned = -(-size // ALIGNMENT) * ALIGNMENT
    return aligned if aligned <= most else size


def blocks_for(tokens: int, vocab: int, element_bytes: int, buffer_bytes: int) -> Blocks:
    """Blocks of at most `buffer_bytes` (never less than one logit): all vocabulary last, so that a weight row is met seldom."""
    elements = max(1, buffer_bytes // element_bytes)
    rows = _even_cut(tokens, max(1, min(MOST_TOKENS, elements // min(vocab, ALIGNMENT))))
    return Blocks(rows, _even_cut(vocab, max(1, elements // max(rows, 1))))


def runs(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, max(size, 1)):
        yield slice(start, min(start + size, length))

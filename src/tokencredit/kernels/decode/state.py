"""The state of a decode step: tensors at fixed addresses, so that a captured CUDA graph can be replayed."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class Slots(NamedTuple):
    """The rows of the batch. A slot names its row, so a row can leave without any cache being copied."""

    row: Int[Tensor, " slot"]
    """-1 in an empty slot."""
    prompt: Int[Tensor, " slot"]
    position: Int[Tensor, " slot"]
    """Position in the response that is sampled next; the token before it is the input."""


class Written(NamedTuple):
    """Sampled tokens by row; nothing is written for a row that has ended."""

    tokens: Int[Tensor, "seq tok"]
    logp: Float[Tensor, "seq tok"]
    entropy: Float[Tensor, "seq tok"]
    length: Int[Tensor, " seq"]
    ended: Int[Tensor, " seq"]
    """1 once an end token was sampled, or the row was stopped from the host."""
    bad: Int[Tensor, " seq"]
    """1 once a row's probabilities were NaN."""


class Knobs(NamedTuple):
    """Sampling settings, on the device, so that one captured step works for all of them."""

    temperature: Float[Tensor, " one"]
    greedy: Int[Tensor, " one"]
    seed: Int[Tensor, " one"]
    first_row: Int[Tensor, " one"]
    """Number of row 0 among all that are sampled with this seed."""
    ends: Int[Tensor, " end"]
    """End tokens; -1 fills up."""


class Statistics(NamedTuple):
    """Of each slot and block of the vocabulary, z being logits / temperature."""

    top: Float[Tensor, "slot block"]
    """max z"""
    mass: Float[Tensor, "slot block"]
    """Σ exp(z − top)"""
    moment: Float[Tensor, "slot block"]
    """Σ (z − top) exp(z − top)"""


class Keys(NamedTuple):
    """One layer's keys and values: of each different prompt once, and of each row's own response."""

    prompt_k: Float[Tensor, "prompt kv tok hd"]
    prompt_v: Float[Tensor, "prompt kv tok hd"]
    own_k: Float[Tensor, "seq kv tok hd"]
    own_v: Float[Tensor, "seq kv tok hd"]
    prompt_length: Int[Tensor, " prompt"]


class Rotary(NamedTuple):
    """Cosines and sines by place; one half, since both halves of a head turn by the same angles."""

    cos: Float[Tensor, "tok half"]
    sin: Float[Tensor, "tok half"]


class HeadNorm(NamedTuple):
    """Norms of each head's query and key, where a model has them."""

    q: Float[Tensor, " hd"]
    k: Float[Tensor, " hd"]


VOCABULARY_BLOCK = 128
"""Logits are summed up by blocks of this many tokens."""


def square_tile(hidden: int) -> int:
    """Columns of the residual stream whose squares are summed together; every kernel that writes the stream writes these sums too."""
    return 32 if hidden < 1024 else 64 if hidden < 2048 else 128


def blocks(size: int, block: int) -> int:
    return -(-size // block)

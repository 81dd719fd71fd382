"""The LM-head kernel: how a gradient step on one token changes another token's log-prob through the head, exactly.

    K(a, b) = <e_ya - p_a, e_yb - p_b> <h_a, h_b> / temperature^2

is the inner product of the two log-prob gradients by the head. Memory holds one vocab x hidden sum and one chunk of tokens x
vocabulary, never a matrix per token.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.credit.delta.vectors import HeadVectors
from tokencredit.diagnose.common import confidence_bucket, confidence_names
from tokencredit.kernels import token_logp


class CouplingParts(NamedTuple):
    """First-order change of each observed token's log-prob per unit of learning rate, by source."""

    own: Float[Tensor, " tok"]
    same: Float[Tensor, " tok"]
    """From other occurrences of the same token."""
    other: Float[Tensor, " tok"]
    """From different tokens."""


class KernelBlock(NamedTuple):
    factor: Float[Tensor, "left right"]
    """<e_ya - p_a, e_yb - p_b>: the factor of K that does not depend on the hidden states."""
    kernel: Float[Tensor, "left right"]


class PairSums(NamedTuple):
    """Sums over unordered pairs of distinct tokens: [different or same token, lower bucket, higher bucket]."""

    pairs: Float[Tensor, "two low high"]
    factor: Float[Tensor, "two low high"]
    kernel: Float[Tensor, "two low high"]
    magnitude: Float[Tensor, "two low high"]
    """Of |K|."""


def _residual(vectors: HeadVectors) -> Float[Tensor, "tok vocab"]:
    """e_y - p."""
    away = -(vectors.hidden @ vectors.head.T / vectors.temperature).softmax(-1)
    return away.scatter_add_(-1, vectors.tokens[:, None], torch.ones_like(away[:, :1]))


def kernel_block(left: HeadVectors, right: HeadVectors) -> KernelBlock:
    """K of every pair of a left and a right token; both need tokens x vocabulary in memory, so pass chunks."""
    factor = _residual(left) @ _residual(right).T
    return KernelBlock(factor, factor * (left.hidden @ right.hidden.T) / (left.temperature * right.temperature))


def head_parts(
    looked_at: HeadVectors, sources: HeadVectors, weight: Float[Tensor, " src"], own_index: Int[Tensor, " tok"]
) -> CouplingParts:
    """sum_b w_b K(a, b) over the sources b of one optimizer step, split by b = a, y_b = y_a, and the rest.

    `weight` is the signed loss weight of each source (c_b A_b: minus the gradient of the loss by its log-prob). `own_index`
    is the place of each looked-at token among the sources, -1 where it is in none: then its own part is 0.
    The whole, <v_a, sum_b w_b v_b>, is one dot product per token; pairs are formed of equal tokens only, in blocks of `chunk`.
    """
    scale = 1 / (looked_at.temperature * sources.temperature)
    weight, placed = weight.double(), own_index >= 0
    everything = scale * _dots(looked_at, _weighted_sum(sources, weight))
    own = torch.zeros_like(everything)
    own[placed] = weight[own_index[placed]] * scale * _squared_norms(looked_at.take(placed))
    same = torch.zeros_like(everything)
    for token in looked_at.tokens.unique():
        here, there = ((vectors.tokens == token).nonzero()[:, 0] for vectors in (looked_at, sources))
        for left in here.split(looked_at.chunk):
            for right in there.split(sources.chunk):
                kernel = kernel_block(looked_at.take(left), sources.take(right)).kernel.double()
                same[left] += kernel.where(own_index[left, None] != right[None], 0.0) @ weight[right]
    return CouplingParts(own, same, everything - own - same)


def pair_sums(vectors: HeadVectors, logp: Float[Tensor, " tok"], *, chunk: int) -> PairSums:
    """Every unordered pair of distinct tokens once, by whether they are the same token and by both confidences; in chunk x chunk blocks."""
    vectors, kinds = replace(vectors, chunk=chunk), len(confidence_names())
    bucket = confidence_bucket(logp.exp())
    sums = [torch.zeros(2 * kinds * kinds, dtype=torch.float64, device=logp.device) for _ in PairSums._fields]
    place = torch.arange(len(vectors), device=logp.device)
    for left_run, left in vectors.chunks():
        for right_run, right in vectors.chunks():
            if right_run.start < left_run.start:
                continue
            factor, kernel = kernel_block(left, right)
            once = place[left_run, None] < place[None, right_run]
            low = torch.minimum(bucket[left_run, None], bucket[None, right_run])
            high = torch.maximum(bucket[left_run, None], bucket[None, right_run])
            same = (left.tokens[:, None] == right.tokens[None]).long()
            cell = ((same * kinds + low) * kinds + high)[once]
            for total, value in zip(sums, (torch.ones_like(kernel), factor, kernel, kernel.abs()), strict=True):
                total.index_add_(0, cell, value[once].double())
    return PairSums(*(total.view(2, kinds, kinds) for total in sums))


def head_mismatch(vectors: HeadVectors, logp: Float[Tensor, " tok"]) -> float:
    """Largest |log softmax(h W^T / temperature)[y] - logp|: 0 if hidden x head gives the model's logits."""
    gaps = [
        (token_logp(chunk.hidden @ chunk.head.T, chunk.tokens, temperature=chunk.temperature) - logp[run]).abs().max()
        for run, chunk in vectors.chunks()
    ]
    return float(torch.stack(gaps).max()) if gaps else float("nan")


def _weighted_sum(vectors: HeadVectors, weight: Float[Tensor, " tok"]) -> Float[Tensor, "vocab hid"]:
    total = torch.zeros_like(vectors.head, dtype=torch.float64)
    for run, chunk in vectors.chunks():
        total += chunk.weighted_sum(weight[run])
    return total


def _dots(vectors: HeadVectors, direction: Float[Tensor, "vocab hid"]) -> Float[Tensor, " tok"]:
    return _join([chunk.dot(direction) for _, chunk in vectors.chunks()], direction)


def _squared_norms(vectors: HeadVectors) -> Float[Tensor, " tok"]:
    """Squares of e_y - p: 1 - 2p + ||p||^2 would round below 0 where a token is nearly certain."""
    return _join([_residual(chunk).square().sum(-1) * chunk.hidden.square().sum(-1) for _, chunk in vectors.chunks()], vectors.hidden)


def _join(parts: list[Tensor], like: Tensor) -> Float[Tensor, " tok"]:
    return torch.cat(parts).double() if parts else torch.zeros(0, dtype=torch.float64, device=like.device)

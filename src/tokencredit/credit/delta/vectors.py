"""Token-gradient vectors for DelTA: the row, hidden-gradient and head proxies, behind one protocol of weighted sums and dot products."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.features import DeviceFeatures, FeatureStore, HostFeatures
from tokencredit.kernels import at_least_float32, token_logp
from tokencredit.kernels.lm_head import BUFFER_BYTES, HeadRule, head_hidden_gradient
from tokencredit.kernels.lm_head.precision import wide, wide_scores
from tokencredit.types import FeatureSource


@runtime_checkable
class TokenVectors(Protocol):
    """One vector per token, used only through weighted sums, dot products and norms."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> "TokenVectors": ...

    def chunks(self) -> Iterator[tuple[slice, "TokenVectors"]]:
        """The same tokens in chunks that fit into memory."""
        ...

    def weighted_sum(self, weight: Float[Tensor, " tok"]) -> Tensor:
        """sum_t w_t v_t, in the shape of one vector."""
        ...

    def dot(self, direction: Tensor) -> Float[Tensor, " tok"]:
        """<v_t, direction> for every token."""
        ...

    def squared_norm(self) -> Float[Tensor, " tok"]: ...


def _runs(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


@dataclass(frozen=True, slots=True)
class DenseVectors:
    """One stored vector per token."""

    vectors: Float[Tensor, "tok hid"]
    chunk: int = 65_536

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, index: Tensor) -> "DenseVectors":
        return DenseVectors(self.vectors[index], self.chunk)

    def chunks(self) -> Iterator[tuple[slice, "DenseVectors"]]:
        for run in _runs(len(self), self.chunk):
            yield run, DenseVectors(self.vectors[run], self.chunk)

    def weighted_sum(self, weight: Float[Tensor, " tok"]) -> Tensor:
        return weight.to(self.vectors.dtype) @ self.vectors

    def dot(self, direction: Tensor) -> Float[Tensor, " tok"]:
        return self.vectors @ direction.to(self.vectors.dtype)

    def squared_norm(self) -> Float[Tensor, " tok"]:
        return self.vectors.square().sum(-1)


@dataclass(frozen=True, slots=True)
class HeadVectors:
    """(e_y - p) x h, the exact gradient of a token's log-prob by the LM head; its vocab x hid matrix per token is never formed."""

    hidden: Float[Tensor, "tok hid"]
    tokens: Int[Tensor, " tok"]
    head: Float[Tensor, "vocab hid"]
    temperature: float
    chunk: int = 4_096

    def __len__(self) -> int:
        return len(self.hidden)

    def take(self, index: Tensor) -> "HeadVectors":
        return HeadVectors(self.hidden[index], self.tokens[index], self.head, self.temperature, self.chunk)

    def chunks(self) -> Iterator[tuple[slice, "HeadVectors"]]:
        for run in _runs(len(self), self.chunk):
            yield run, HeadVectors(self.hidden[run], self.tokens[run], self.head, self.temperature, self.chunk)

    def _probabilities(self) -> Float[Tensor, "tok vocab"]:
        return (self.hidden @ self.head.T / self.temperature).softmax(-1)

    def weighted_sum(self, weight: Float[Tensor, " tok"]) -> Tensor:
        weight = weight.to(self.hidden.dtype)
        expected_row = -(self._probabilities() * weight[:, None]).T @ self.hidden
        return expected_row.index_add_(0, self.tokens, weight[:, None] * self.hidden)

    def dot(self, direction: Tensor) -> Float[Tensor, " tok"]:
        scores = self.hidden @ direction.to(self.hidden.dtype).T
        return scores.gather(-1, self.tokens[:, None]).squeeze(-1) - (self._probabilities() * scores).sum(-1)

    def squared_norm(self) -> Float[Tensor, " tok"]:
        p = self._probabilities()
        chosen = p.gather(-1, self.tokens[:, None]).squeeze(-1)
        return (1 - 2 * chosen + p.square().sum(-1)) * self.hidden.square().sum(-1)


def valid_features(hidden: Float[Tensor, "seq tok hid"] | FeatureSource, mask: Bool[Tensor, "seq tok"]) -> Float[Tensor, "packed hid"]:
    """A copy of the packed features of the mask's tokens."""
    if isinstance(hidden, Tensor):
        return hidden[mask]
    # A source may overwrite a chunk when the next one is requested.
    copies = [features.clone() for _, features in hidden.chunks()]
    return torch.cat(copies) if copies else torch.zeros(0, hidden.width, device=mask.device)


def row_vectors(logp: Float[Tensor, " tok"], hidden: Float[Tensor, "tok hid"]) -> DenseVectors:
    """(1 - p) h: the gradient by the sampled token's row of the head, without the row's index (DelTA's default)."""
    return DenseVectors((-at_least_float32(logp).expm1())[:, None] * at_least_float32(hidden))


def hidden_gradient_vectors(
    hidden: Float[Tensor, "tok hid"],
    tokens: Int[Tensor, " tok"],
    head: Float[Tensor, "vocab hid"],
    *,
    temperature: float,
    top_k: int,
    chunk: int = 4_096,
) -> DenseVectors:
    """W_y - sum over the K likeliest tokens of their renormalised probability x W_j, which approximates d log p / d h."""
    hidden, head = at_least_float32(hidden), at_least_float32(head)
    parts = [hidden.new_empty(0, head.shape[1])]
    for run in _runs(len(hidden), chunk):
        logit, index = (hidden[run] @ head.T / temperature).topk(min(top_k, len(head)), dim=-1)
        mean_row = torch.einsum("tk,tkh->th", logit.softmax(-1), head[index])
        parts.append(head[tokens[run]] - mean_row)
    return DenseVectors(torch.cat(parts))


def check_head_explains_logp(logp: Tensor, hidden: Tensor, tokens: Tensor, head: Tensor, temperature: float) -> None:
    """Raise if softmax(hidden x head) is not the model's distribution: a logit scale, a soft-cap or a head bias changes it."""
    if not len(logp):
        return
    gap = float((token_logp(hidden @ head.T, tokens, temperature=temperature) - at_least_float32(logp)).abs().max())
    # bf16 states move a log-prob by a few hundredths; a missing scale or bias moves it by far more.
    if not gap < 0.25:
        raise ValueError(
            f"hidden and head give log-probs up to {gap:.3g} away from logp; this model does more than hidden x head "
            "(a logit scale, soft-cap or bias), so use proxy 'row'"
        )


VECTOR_BYTES = 8 << 30
"""Vectors that take more bytes than this are stored on the host."""
SPARE = 8
"""Candidates after the K likeliest tokens: rounding may have moved as many across the K-th logit, so theirs are recomputed too."""


def hidden_gradient_features(
    source: FeatureSource,
    tokens: Int[Tensor, " tok"],
    head: Float[Tensor, "vocab hid"],
    *,
    temperature: float,
    top_k: int,
    device_bytes: int = VECTOR_BYTES,
    buffer_bytes: int = BUFFER_BYTES,
) -> DeviceFeatures | HostFeatures:
    """W_y - sum over the K likeliest tokens of their renormalised probability x W_j, for every token of `source`.

    One sweep over the head, a block of logits at a time: 2 vocab hid FLOPs per token for any number of refinements, because the
    vectors are stored (in float32). The K tokens are selected in float64: in float32 a K-th logit that differs from the next by a
    millionth can select the wrong token, a few times in 10^5, and moves that token's coefficient by thousandths.
    """
    store = None
    for number, features in source.chunks():
        run = source.runs[number]
        if store is None:
            store = FeatureStore(len(source), source.width, wide(features.dtype), features.device, device_bytes)
        head = head.to(features.dtype)
        rows = _tokens_per_block(len(head), source.width, top_k, buffer_bytes)
        for start in range(run.start, run.stop, rows):
            part = slice(start, min(start + rows, run.stop))
            hidden = features[part.start - run.start : part.stop - run.start]
            store.put(part, _block_vectors(hidden, tokens[part], head, temperature, top_k))
    assert store is not None
    return store.source()


def _tokens_per_block(vocab: int, width: int, top_k: int, buffer_bytes: int) -> int:
    """Memory per token: two float32 copies of its logits; its candidate rows of the head, stored and in float64."""
    return max(1, buffer_bytes // max(8 * vocab, 12 * min(top_k + SPARE, vocab) * width))


def _block_vectors(hidden: Tensor, tokens: Tensor, head: Tensor, temperature: float, top_k: int) -> Float[Tensor, "tok hid"]:
    if top_k >= len(head):
        return head_hidden_gradient(hidden, head, tokens, HeadRule(temperature))
    near = wide_scores(hidden, head).topk(min(top_k + SPARE, len(head)), dim=-1).indices
    rows = head[near].double()
    logit = torch.einsum("th,tkh->tk", hidden.double(), rows) / temperature
    likeliest, at = logit.topk(top_k, dim=-1)
    share = torch.zeros_like(logit).scatter_(1, at, likeliest.softmax(-1))
    return (head[tokens].double() - torch.einsum("tk,tkh->th", share, rows)).to(wide(hidden.dtype))

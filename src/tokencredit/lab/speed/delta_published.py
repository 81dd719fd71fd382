"""DelTA as its authors released it: nothing is kept, so every phase passes the whole batch through the model again.

The scoring pass gives old log-probs and the first centroids; then one pass for the first temperatures, one per
refinement and one for the final scores: K + 2 passes more (2605.21467). Only the row proxy, and one scope.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.kernels import at_least_float32

LEAST = 1e-8


class Chunk(NamedTuple):
    """Some rows of the batch, with what one pass over them found for their tokens, row after row without padding."""

    rows: Tensor
    logp: Float[Tensor, " tok"]
    hidden: Float[Tensor, "tok hid"]


ForwardMode = Callable[[], Iterator[Chunk]]
"""Passes the batch through the model, a chunk at a time."""


class _Sides(NamedTuple):
    positive: Tensor
    negative: Tensor


def _vectors(chunk: Chunk) -> Float[Tensor, "tok hid"]:
    return (1 - at_least_float32(chunk.logp).exp())[:, None] * at_least_float32(chunk.hidden)


def _token_advantage(chunk: Chunk, advantage: Tensor, mask: Tensor) -> Float[Tensor, " tok"]:
    shown = mask[chunk.rows]
    return advantage[chunk.rows][:, None].expand(shown.shape)[shown].double()


class _Sums:
    def __init__(self) -> None:
        self.sum: list[Tensor | float] = [0.0, 0.0]
        self.mass: list[Tensor | float] = [0.0, 0.0]

    def add(self, vectors: Tensor, advantage: Tensor, share: Tensor | float) -> None:
        for side, sign in enumerate((1, -1)):
            weight = (sign * advantage).clamp(min=0) * share
            self.sum[side] = self.sum[side] + (weight.to(vectors.dtype) @ vectors).double()
            self.mass[side] = self.mass[side] + weight.sum()

    def centroids(self) -> _Sides:
        positive, negative = (total / torch.as_tensor(mass).clamp(min=LEAST) for total, mass in zip(self.sum, self.mass, strict=True))
        return _Sides(torch.as_tensor(positive), torch.as_tensor(negative))


class _Moments:
    """Sums and sums of squares of the margins of each side."""

    def __init__(self) -> None:
        self.count: list[Tensor | float] = [0.0, 0.0]
        self.first: list[Tensor | float] = [0.0, 0.0]
        self.second: list[Tensor | float] = [0.0, 0.0]

    def add(self, margin: Tensor, advantage: Tensor) -> None:
        for side, own in enumerate((advantage > 0, advantage < 0)):
            self.count[side] = self.count[side] + own.sum()
            self.first[side] = self.first[side] + margin.where(own, 0.0).sum()
            self.second[side] = self.second[side] + margin.where(own, 0.0).square().sum()

    def temperatures(self) -> _Sides:
        found = []
        for count, first, second in zip(self.count, self.first, self.second, strict=True):
            among = torch.as_tensor(count).clamp(min=1)
            found.append((second / among - (first / among) ** 2).clamp(min=LEAST).sqrt())
        return _Sides(*found)


def _margin(vectors: Tensor, advantage: Tensor, centroids: _Sides) -> Float[Tensor, " tok"]:
    """By the linear identity, as a difference of distances would lose digits."""
    direction = (centroids.positive - centroids.negative).to(vectors.dtype)
    offset = centroids.negative.square().sum() - centroids.positive.square().sum()
    return (2 * (vectors @ direction).double() + offset) * advantage.sign()


def _share(margin: Tensor, advantage: Tensor, temperature: _Sides) -> Tensor:
    return torch.sigmoid(margin / torch.where(advantage > 0, temperature.positive, temperature.negative))


@torch.no_grad()
def first_centroids(chunks: Iterator[Chunk], advantage: Float[Tensor, " seq"], mask: Bool[Tensor, "seq tok"]) -> _Sides:
    """What the pass that scores old log-probs also sums up."""
    sums = _Sums()
    for chunk in chunks:
        sums.add(_vectors(chunk), _token_advantage(chunk, advantage, mask), 1.0)
    return sums.centroids()


@torch.no_grad()
def published_coefficients(
    passes: ForwardMode,
    centroids: _Sides,
    advantage: Float[Tensor, " seq"],
    mask: Bool[Tensor, "seq tok"],
    *,
    refinements: int = 1,
    lam_min: float = 0.8,
    lam_max: float = 1.2,
) -> Float[Tensor, "seq tok"]:
    """Coefficients of mean 1, in `refinements` + 2 passes over the batch."""
    moments = _Moments()
    for chunk in passes():
        token_advantage = _token_advantage(chunk, advantage, mask)
        moments.add(_margin(_vectors(chunk), token_advantage, centroids), token_advantage)
    temperature = moments.temperatures()
    for _ in range(refinements):
        sums, moments = _Sums(), _Moments()
        for chunk in passes():
            vectors, token_advantage = _vectors(chunk), _token_advantage(chunk, advantage, mask)
            margin = _margin(vectors, token_advantage, centroids)
            sums.add(vectors, token_advantage, _share(margin, token_advantage, temperature))
            moments.add(margin, token_advantage)
        centroids, temperature = sums.centroids(), moments.temperatures()
    coefficient = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    for chunk in passes():
        vectors, token_advantage = _vectors(chunk), _token_advantage(chunk, advantage, mask)
        score = _share(_margin(vectors, token_advantage, centroids), token_advantage, temperature).where(token_advantage != 0, 0.0)
        shown = mask[chunk.rows]
        coefficient[chunk.rows] = torch.zeros(shown.shape, dtype=torch.float64, device=mask.device).masked_scatter(
            shown, lam_min + (lam_max - lam_min) * score
        )
    return coefficient * mask.sum() / coefficient.sum().clamp(min=LEAST)

"""Weighted sums and projections of token-gradient vectors, swept from stored features without a copy: the vectors of the batched form."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.credit.delta.layout import Tiles
from tokencredit.kernels.delta import project, squared_norms, weighted_sums
from tokencredit.kernels.lm_head import HeadRule, head_projection, head_statistics, head_weight_sum
from tokencredit.types import FeatureSource

BLOCK = 32_768
"""Tokens whose hidden states are copied together for one call of the head's kernels."""


class ChunkTiles(NamedTuple):
    """The layout of the tokens in one chunk of features."""

    number: int
    tiles: Tiles
    size: Float[Tensor, "tile slot"]
    """|A|, 0 in empty slots."""


@runtime_checkable
class Sweeps(Protocol):
    """Sweeps over the tokens of all chunks. A "part" is a scope where `by_scope`, else one of its sides."""

    def sums(self, weights: Sequence[Tensor], factor: Float[Tensor, " side"], *, by_scope: bool) -> Float[Tensor, "part *vector"]:
        """sum_t w_t v_t over each part, every token times the factor of its side."""
        ...

    def dots(self, direction: Float[Tensor, "part *vector"], *, by_scope: bool) -> list[Float[Tensor, "_ _"]]:
        """<v_t, direction of the token's part> by chunk; 0 in empty slots."""
        ...

    def squared_norms(self) -> list[Float[Tensor, "_ _"]]: ...


@dataclass(frozen=True, slots=True)
class RowSweeps:
    """(1 - p) h of all scopes, with the factor stored with the features; a sweep reads N x hid numbers."""

    source: FeatureSource
    chunks: Sequence[ChunkTiles]
    scales: Sequence[Float[Tensor, "_ _"]] | None
    """(1 - p) of each token; None stands for 1."""

    def _chunks(self) -> Iterator[tuple[Tensor, Tiles, Tensor | None]]:
        scales = [None] * len(self.chunks) if self.scales is None else self.scales
        chunks = self.source.chunks([chunk.number for chunk in self.chunks])
        for chunk, scale, (_, features) in zip(self.chunks, scales, chunks, strict=True):
            yield features, chunk.tiles, scale

    def sums(self, weights: Sequence[Tensor], factor: Float[Tensor, " side"], *, by_scope: bool) -> Float[Tensor, "part hid"]:
        total = None
        for weight, (features, tiles, scale) in zip(weights, self._chunks(), strict=True):
            summed = weighted_sums(features, tiles.feature_row, weight if scale is None else weight * scale, tiles.first)
            total = summed if total is None else total.add_(summed)
        assert total is not None
        total.mul_(factor[:, None])
        return total.view(-1, 2, total.shape[1]).sum(1) if by_scope else total

    def dots(self, direction: Float[Tensor, "part hid"], *, by_scope: bool) -> list[Tensor]:
        found = []
        for features, tiles, scale in self._chunks():
            dot = project(features, tiles.feature_row, tiles.side // 2 if by_scope else tiles.side, direction)
            found.append(dot if scale is None else dot * scale)
        return found

    def squared_norms(self) -> list[Tensor]:
        found = []
        for features, tiles, scale in self._chunks():
            norm = squared_norms(features, tiles.feature_row)
            found.append(norm if scale is None else norm * scale.square())
        return found


class HeadTokens(NamedTuple):
    """Statistics of the head's distribution for the tokens of a chunk."""

    ids: Int[Tensor, "tile slot"]
    logp: Float[Tensor, "tile slot"]
    squared_mass: Float[Tensor, "tile slot"]


class HeadSweeps:
    """The exact (e_y - p) x h of one scope's tokens; parts are the scope, or its two sides.

    Cost in products of 2 vocab hid FLOPs per token: one for the normalisers, two for a sum, two for a projection, and one more of
    each in half precision, so 4 K + 5 or 6 K + 7 in all. No forward pass of the model, and at most two vocab x hid matrices in
    float32: the direction and its next summand. In half precision the errors (e_y - p) and the direction are each split into two
    numbers of that precision (leading digits and remainder); one rounded number would be off by 2^-9 for a token that is alone
    in its row of the direction.
    """

    def __init__(
        self, source: FeatureSource, chunks: Sequence[ChunkTiles], ids: Sequence[Int[Tensor, "_ _"]], head: Tensor, rule: HeadRule
    ) -> None:
        self.source, self.chunks, self.head, self.rule = source, chunks, head, rule
        self.tokens: list[HeadTokens] = []
        for chunk_ids, (_, blocks) in zip(ids, self._chunks(), strict=True):
            parts = [head_statistics(hidden, head, chunk_ids.flatten()[run], rule) for run, hidden in blocks]
            logp, mass = (torch.cat([getattr(part, name) for part in parts]).view_as(chunk_ids) for name in ("logp", "squared_mass"))
            self.tokens.append(HeadTokens(chunk_ids, logp, mass))

    def _chunks(self) -> Iterator[tuple[Tiles, Iterator[tuple[slice, Tensor]]]]:
        """The hidden states of each chunk in blocks; an empty slot reads row 0, with weight 0."""
        for chunk, (_, features) in zip(self.chunks, self.source.chunks([chunk.number for chunk in self.chunks]), strict=True):
            yield chunk.tiles, _blocks(features, chunk.tiles.feature_row.flatten().clamp(min=0))

    def sums(self, weights: Sequence[Tensor], factor: Float[Tensor, " side"], *, by_scope: bool) -> Float[Tensor, "part vocab hid"]:
        totals: list[Tensor | None] = [None] * (1 if by_scope else 2)
        for weight, known, (tiles, blocks) in zip(weights, self.tokens, self._chunks(), strict=True):
            shares = _by_part(weight * factor[tiles.side][:, None], tiles, by_scope)
            for run, hidden in blocks:
                ids, logp = known.ids.flatten()[run], known.logp.flatten()[run]
                for part, (total, share) in enumerate(zip(totals, shares, strict=True)):
                    summed = head_weight_sum(hidden, self.head, ids, share[run], self.rule, logp=logp)
                    totals[part] = summed if total is None else total.add_(summed)
        found = [total for total in totals if total is not None]
        return found[0][None] if by_scope else torch.stack(found)

    def dots(self, direction: Float[Tensor, "part vocab hid"], *, by_scope: bool) -> list[Tensor]:
        found = []
        for known, (tiles, blocks) in zip(self.tokens, self._chunks(), strict=True):
            projected = torch.cat([self._project(hidden, known.ids.flatten()[run], direction) for run, hidden in blocks], 1)
            part = torch.zeros_like(known.ids) if by_scope else tiles.side[:, None].expand_as(known.ids)
            dot = projected.view(len(direction), *part.shape).gather(0, part[None])[0]
            found.append(dot.where(tiles.feature_row >= 0, 0.0))
        return found

    def _project(self, hidden: Tensor, ids: Tensor, direction: Tensor) -> Float[Tensor, "part tok"]:
        return torch.stack([head_projection(hidden, self.head, ids, matrix, self.rule) for matrix in direction])

    def squared_norms(self) -> list[Tensor]:
        found = []
        for known, (tiles, blocks) in zip(self.tokens, self._chunks(), strict=True):
            squared = torch.cat([hidden.double().square().sum(-1) for _, hidden in blocks]).view_as(known.ids)
            norm = (1 - 2 * known.logp.exp() + known.squared_mass) * squared
            found.append(norm.where(tiles.feature_row >= 0, 0.0))
        return found


def _blocks(features: Tensor, rows: Int[Tensor, " tok"]) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, max(1, len(rows)), BLOCK):
        run = slice(start, start + BLOCK)
        yield run, features[rows[run]]


def _by_part(weight: Float[Tensor, "tile slot"], tiles: Tiles, by_scope: bool) -> Float[Tensor, "part tok"]:
    """The weights in one row per part, 0 for tokens of another part."""
    if by_scope:
        return weight.flatten()[None]
    return torch.stack([weight.where((tiles.side == side)[:, None], 0.0).flatten() for side in range(2)])

"""What DelTA asks of token-gradient vectors when nothing may be copied: weighted sums and projections, swept from stored features.

`RowSweeps` are (1 - p) h with the factor kept beside the features, for all scopes at once; one sweep reads N x hid numbers.
`HeadSweeps` are the exact (e_y - p) x h of one scope. They cost products of 2 vocab hid FLOPs a token: one for the
normalisers, two for a sum, two for a projection, one more of each in half precision: 4 K + 5 or 6 K + 7 in all, no pass
through the model, and never more than two vocab x hid matrices in float32, the direction and what is added to it. In half
precision the errors (e_y - p) and the direction are multiplied as two numbers of that precision, leading digits and the
rest: rounded to one, a token that stands alone in its row of the direction would be judged by a product off by 2^-9.
"""

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
"""Tokens whose hidden states are gathered for one call into the head."""


class Piece(NamedTuple):
    """The tokens of one chunk of features."""

    number: int
    tiles: Tiles
    size: Float[Tensor, "tile slot"]
    """|A|, 0 in empty slots."""


@runtime_checkable
class Sweeps(Protocol):
    """`by_scope`: one vector for a scope; else one for each of its sides."""

    def sums(self, weights: Sequence[Tensor], factor: Float[Tensor, " side"], *, by_scope: bool) -> Float[Tensor, "part *vector"]:
        """sum_t w_t v_t, each side's tokens times the side's factor."""
        ...

    def dots(self, direction: Float[Tensor, "part *vector"], *, by_scope: bool) -> list[Float[Tensor, "_ _"]]:
        """<v_t, direction of the token's part>; 0 in empty slots."""
        ...

    def squared_norms(self) -> list[Float[Tensor, "_ _"]]: ...


@dataclass(frozen=True, slots=True)
class RowSweeps:
    source: FeatureSource
    pieces: Sequence[Piece]
    scales: Sequence[Float[Tensor, "_ _"]] | None
    """(1 - p) of each token; None stands for 1."""

    def _chunks(self) -> Iterator[tuple[Tensor, Tiles, Tensor | None]]:
        scales = [None] * len(self.pieces) if self.scales is None else self.scales
        chunks = self.source.chunks([piece.number for piece in self.pieces])
        for piece, scale, (_, features) in zip(self.pieces, scales, chunks, strict=True):
            yield features, piece.tiles, scale

    def sums(self, weights: Sequence[Tensor], factor: Float[Tensor, " side"], *, by_scope: bool) -> Float[Tensor, "part hid"]:
        total = None
        for weight, (features, tiles, scale) in zip(weights, self._chunks(), strict=True):
            summed = weighted_sums(features, tiles.place, weight if scale is None else weight * scale, tiles.first)
            total = summed if total is None else total.add_(summed)
        assert total is not None
        total.mul_(factor[:, None])
        return total.view(-1, 2, total.shape[1]).sum(1) if by_scope else total

    def dots(self, direction: Float[Tensor, "part hid"], *, by_scope: bool) -> list[Tensor]:
        found = []
        for features, tiles, scale in self._chunks():
            dot = project(features, tiles.place, tiles.side // 2 if by_scope else tiles.side, direction)
            found.append(dot if scale is None else dot * scale)
        return found

    def squared_norms(self) -> list[Tensor]:
        found = []
        for features, tiles, scale in self._chunks():
            norm = squared_norms(features, tiles.place)
            found.append(norm if scale is None else norm * scale.square())
        return found


class HeadTokens(NamedTuple):
    """What the head says of the tokens of a piece."""

    ids: Int[Tensor, "tile slot"]
    logp: Float[Tensor, "tile slot"]
    squared_mass: Float[Tensor, "tile slot"]


class HeadSweeps:
    """One scope's tokens: parts are the scope alone, or its two sides."""

    def __init__(
        self, source: FeatureSource, pieces: Sequence[Piece], ids: Sequence[Int[Tensor, "_ _"]], head: Tensor, rule: HeadRule
    ) -> None:
        self.source, self.pieces, self.head, self.rule = source, pieces, head, rule
        self.tokens: list[HeadTokens] = []
        for own, (_, blocks) in zip(ids, self._chunks(), strict=True):
            parts = [head_statistics(hidden, head, own.flatten()[run], rule) for run, hidden in blocks]
            logp, mass = (torch.cat([getattr(part, name) for part in parts]).view_as(own) for name in ("logp", "squared_mass"))
            self.tokens.append(HeadTokens(own, logp, mass))

    def _chunks(self) -> Iterator[tuple[Tiles, Iterator[tuple[slice, Tensor]]]]:
        """Empty slots stand for some token of the chunk, to which nobody gives weight."""
        for piece, (_, features) in zip(self.pieces, self.source.chunks([piece.number for piece in self.pieces]), strict=True):
            yield piece.tiles, _blocks(features, piece.tiles.place.flatten().clamp(min=0))

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
            own = torch.zeros_like(known.ids) if by_scope else tiles.side[:, None].expand_as(known.ids)
            dot = projected.view(len(direction), *own.shape).gather(0, own[None])[0]
            found.append(dot.where(tiles.place >= 0, 0.0))
        return found

    def _project(self, hidden: Tensor, ids: Tensor, direction: Tensor) -> Float[Tensor, "part tok"]:
        return torch.stack([head_projection(hidden, self.head, ids, matrix, self.rule) for matrix in direction])

    def squared_norms(self) -> list[Tensor]:
        found = []
        for known, (tiles, blocks) in zip(self.tokens, self._chunks(), strict=True):
            squared = torch.cat([hidden.double().square().sum(-1) for _, hidden in blocks]).view_as(known.ids)
            norm = (1 - 2 * known.logp.exp() + known.squared_mass) * squared
            found.append(norm.where(tiles.place >= 0, 0.0))
        return found


def _blocks(features: Tensor, rows: Int[Tensor, " tok"]) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, max(1, len(rows)), BLOCK):
        run = slice(start, start + BLOCK)
        yield run, features[rows[run]]


def _by_part(weight: Float[Tensor, "tile slot"], tiles: Tiles, by_scope: bool) -> Float[Tensor, "part tok"]:
    """The same weights, one row for each part, 0 where a token is of another."""
    if by_scope:
        return weight.flatten()[None]
    return torch.stack([weight.where((tiles.side == side)[:, None], 0.0).flatten() for side in range(2)])

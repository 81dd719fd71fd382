"""DelTA's algorithm over stored features: every scope at once, nothing copied, and nothing asked of the device on the way.

The numbers are those of `discriminator.scope_coefficients`, the plain twin. What a token needs is one product, and what its
side needs are sums of them: with r_t = 2 <v_t, mu+ - mu->, a margin is r_t plus or minus an offset, ||mu-||^2 - ||mu+||^2,
which is minus half the sum of both sides' weighted means of r. So neither centroid is held, only their difference.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.credit.delta.accumulators import FLOOR, Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions
from tokencredit.credit.delta.batched_vectors import Piece, Sweeps
from tokencredit.credit.delta.layout import TensorSum
from tokencredit.kernels.delta import scope_sums


class SideMoments(NamedTuple):
    """Of the margins of each side: their number, mean and sum of squared deviations, merged by Chan's rule."""

    tokens: Float[Tensor, " side"]
    mean: Float[Tensor, " side"]
    deviation: Float[Tensor, " side"]

    def merge(self, other: "SideMoments") -> "SideMoments":
        tokens = self.tokens + other.tokens
        part, gap = other.tokens / tokens.clamp(min=1), other.mean - self.mean
        return SideMoments(tokens, self.mean + gap * part, self.deviation + other.deviation + gap.square() * self.tokens * part)

    def spread(self) -> Float[Tensor, " side"]:
        """The floored standard deviation."""
        return (self.deviation / self.tokens.clamp(min=1)).clamp(min=FLOOR).sqrt()


class Gammas(NamedTuple):
    """Temperatures on the device."""

    sides: Float[Tensor, " side"]
    pooled_of: SideMoments | Float[Tensor, " scope"]
    """What the temperature of both sides together is made of, or that temperature."""
    scale: float

    def pooled(self) -> Float[Tensor, " scope"]:
        """Of contrasts: of margins, the negative side's turned around."""
        if isinstance(self.pooled_of, Tensor):
            return self.pooled_of
        positive, negative = (SideMoments(*(field[side::2] for field in self.pooled_of)) for side in range(2))
        return self.scale * positive.merge(negative._replace(mean=-negative.mean)).spread()

    def table(self) -> Float[Tensor, "scope 3"]:
        return torch.cat([self.sides.view(-1, 2), self.pooled()[:, None]], 1)


@runtime_checkable
class Temperatures(Protocol):
    def table(self) -> Float[Tensor, "scope 3"]:
        """Of each scope: positive, negative, pooled."""
        ...


class Scores(NamedTuple):
    score: list[Float[Tensor, "_ _"]]
    """In [0, 1], before the map; anything in empty slots."""
    gammas: Gammas


def side_sums(values: Sequence[Float[Tensor, "*column _ _"]], pieces: Sequence[Piece]) -> Float[Tensor, "side column"]:
    """Sums over the tokens of each side; what empty slots hold must be 0."""
    total = None
    for value, piece in zip(values, pieces, strict=True):
        by_tile = value.sum(-1, dtype=torch.float64)
        summed = scope_sums(by_tile[:, None] if by_tile.dim() == 1 else by_tile.T, piece.tiles.first)
        total = summed if total is None else total + summed
    assert total is not None
    return total


def score_tokens(sweeps: Sweeps, pieces: Sequence[Piece], options: DeltaOptions) -> Scores:
    """Directions from weights, margins from directions, scores from margins; K + 1 times, two sweeps over the features each."""
    contrast = options.score == "contrast"
    sides = torch.arange(len(pieces[0].tiles.tokens), device=pieces[0].size.device)
    # The own-side score knows one centroid for each side, and no sign.
    flip = (1 - 2 * (sides % 2) if contrast else torch.ones_like(sides)).double()
    norms = None if contrast else sweeps.squared_norms()
    weights = [piece.size for piece in pieces]
    tokens = torch.stack([piece.tiles.tokens for piece in pieces]).sum(0).double()
    raw: list[Tensor] = []
    slope = shift = torch.zeros_like(flip)
    measured: Gammas | None = None
    for refinement in range(options.refinements + 1):
        mass = options.reduce(TensorSum(side_sums(weights, pieces))).total[:, 0].clamp(min=FLOOR)
        direction = options.reduce(TensorSum(sweeps.sums(weights, 2 * flip / mass, by_scope=contrast))).total
        twice = sweeps.dots(direction, by_scope=contrast)
        raw = twice if norms is None else [dot - norm for dot, norm in zip(twice, norms, strict=True)]
        columns = [torch.stack([weight * dot, value]) for weight, dot, value in zip(weights, twice, raw, strict=True)]
        sums = side_sums(columns, pieces)
        weighted = options.reduce(TensorSum(sums[:, 0])).total / mass
        shift = -0.5 * (flip * _for_both(weighted.view(-1, 2).sum(1)) if contrast else weighted)
        # The lag: margins are judged by the temperature of those before them, the first ones by their own.
        lagged = measured
        if measured is None or refinement < options.refinements:
            measured = _measure(raw, pieces, tokens, sums[:, 1], flip, shift, options)
        gammas = measured if lagged is None else lagged
        slope, shift = flip / gammas.sides, shift / gammas.sides
        if refinement < options.refinements:
            weights = [piece.size * _assign(value, slope, shift, piece, options) for value, piece in zip(raw, pieces, strict=True)]
        else:
            measured = gammas
    assert measured is not None
    if options.coefficient_map == "symmetric":
        again = measured.sides / _for_both(measured.pooled())
        slope, shift = slope * again, shift * again
    final = _decisiveness if options.coefficient_map == "symmetric" else _assign
    return Scores([final(value, slope, shift, piece, options) for value, piece in zip(raw, pieces, strict=True)], measured)


def _measure(
    raw: Sequence[Tensor], pieces: Sequence[Piece], tokens: Tensor, sums: Tensor, flip: Tensor, shift: Tensor, options: DeltaOptions
) -> Gammas:
    """Temperatures of the margins flip x raw + shift, in two passes: no difference of squares."""
    if options.fixed_temperature is not None:
        positive, negative, pooled = (flip.new_full((len(flip) // 2,), gamma) for gamma in options.fixed_temperature)
        return Gammas(torch.stack([positive, negative], 1).flatten(), pooled, 1.0)
    mean = sums / tokens.clamp(min=1)
    squares = [
        (value - mean[piece.tiles.side].to(value.dtype)[:, None]).square().where(piece.tiles.place >= 0, 0.0)
        for value, piece in zip(raw, pieces, strict=True)
    ]
    moments = options.reduce(SideMoments(tokens, flip * mean + shift, side_sums(squares, pieces)[:, 0]))
    return Gammas(options.gamma_scale * moments.spread(), moments, options.gamma_scale)


def _for_both(of_scope: Float[Tensor, " scope"]) -> Float[Tensor, " side"]:
    return of_scope[:, None].expand(-1, 2).flatten()


def _judged(raw: Tensor, slope: Tensor, shift: Tensor, piece: Piece) -> Float[Tensor, "tile slot"]:
    """Margin / temperature."""
    table = torch.stack([slope, shift], 1)[piece.tiles.side].to(raw.dtype)
    return torch.addcmul(table[:, 1:], raw, table[:, :1])


def _assign(raw: Tensor, slope: Tensor, shift: Tensor, piece: Piece, options: DeltaOptions) -> Float[Tensor, "tile slot"]:
    """a_it in [0, 1]; see `discriminator`."""
    judged = _judged(raw, slope, shift, piece)
    return (judged > 0).to(judged.dtype) if options.assignment == "hard" else judged.sigmoid()


def _decisiveness(raw: Tensor, slope: Tensor, shift: Tensor, piece: Piece, options: DeltaOptions) -> Float[Tensor, "tile slot"]:
    judged = _judged(raw, slope, shift, piece)
    return torch.ones_like(judged) if options.assignment == "hard" else (judged.abs() / 2).tanh()


class LazyTemperatures(Sequence[Temperature]):
    """Temperatures of the scopes with two sides, read from the device by whoever looks at them first."""

    def __init__(self, gammas: Sequence[Temperatures], exists: Tensor) -> None:
        self._measured = gammas, exists
        self._read: list[Temperature] | None = None

    def _list(self) -> list[Temperature]:
        if self._read is None:
            gammas, exists = self._measured
            table = torch.cat([each.table() for each in gammas]) if gammas else torch.zeros(0, 3)
            self._read = [Temperature(*row) for row in (table[exists] if len(exists) == len(table) else table).tolist()]
        return self._read

    def __len__(self) -> int:
        return len(self._list())

    def __getitem__(self, index: Any) -> Any:
        return self._list()[index]

    def __iter__(self) -> Iterator[Temperature]:
        return iter(self._list())

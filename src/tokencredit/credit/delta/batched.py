"""DelTA's algorithm for all scopes at once, by sweeps over stored features: no copy of features and no device-host sync.

The plain twin with the same numbers is `algorithm.scope_coefficients`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.credit.delta.accumulators import FLOOR, Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions
from tokencredit.credit.delta.batched_vectors import ChunkTiles, Sweeps
from tokencredit.credit.delta.layout import TensorSum
from tokencredit.kernels.delta import scope_sums


class SideMoments(NamedTuple):
    """Number, mean and sum of squared deviations of the margins on each side, merged by Chan's rule."""

    tokens: Float[Tensor, " side"]
    mean: Float[Tensor, " side"]
    deviation: Float[Tensor, " side"]

    def merge(self, other: "SideMoments") -> "SideMoments":
        tokens = self.tokens + other.tokens
        weight, gap = other.tokens / tokens.clamp(min=1), other.mean - self.mean
        return SideMoments(tokens, self.mean + gap * weight, self.deviation + other.deviation + gap.square() * self.tokens * weight)

    def spread(self) -> Float[Tensor, " side"]:
        """Standard deviation, its variance at least FLOOR."""
        return (self.deviation / self.tokens.clamp(min=1)).clamp(min=FLOOR).sqrt()


class DeviceTemperatures(NamedTuple):
    """Temperatures that stay on the device until they are read."""

    sides: Float[Tensor, " side"]
    pooled_of: SideMoments | Float[Tensor, " scope"]
    """The moments behind the pooled temperature (of both sides together), or that temperature itself."""
    scale: float

    def pooled(self) -> Float[Tensor, " scope"]:
        """Temperature of the contrasts: the margins, with the negative side's sign reversed."""
        if isinstance(self.pooled_of, Tensor):
            return self.pooled_of
        positive, negative = (SideMoments(*(field[side::2] for field in self.pooled_of)) for side in range(2))
        return self.scale * positive.merge(negative._replace(mean=-negative.mean)).spread()

    def table(self) -> Float[Tensor, "scope 3"]:
        return torch.cat([self.sides.view(-1, 2), self.pooled()[:, None]], 1)


@runtime_checkable
class Temperatures(Protocol):
    def table(self) -> Float[Tensor, "scope 3"]:
        """Positive, negative and pooled temperature of each scope."""
        ...


class MarginScores(NamedTuple):
    score: list[Float[Tensor, "_ _"]]
    """In [0, 1], before the coefficient map; undefined in empty slots."""
    gammas: DeviceTemperatures


def side_sums(values: Sequence[Float[Tensor, "*column _ _"]], chunks: Sequence[ChunkTiles]) -> Float[Tensor, "side column"]:
    """Sums over the tokens of each side; empty slots must hold 0."""
    total = None
    for value, chunk in zip(values, chunks, strict=True):
        by_tile = value.sum(-1, dtype=torch.float64)
        summed = scope_sums(by_tile[:, None] if by_tile.dim() == 1 else by_tile.T, chunk.tiles.first)
        total = summed if total is None else total + summed
    assert total is not None
    return total


def margin_scores(sweeps: Sweeps, chunks: Sequence[ChunkTiles], options: DeltaOptions) -> MarginScores:
    """Weights to direction to margins to scores, K + 1 times, with two sweeps over the features each.

    With r_t = 2 <v_t, mu+ - mu->, a contrast is r_t + ||mu-||^2 - ||mu+||^2, and that offset is minus half the sum of both sides'
    weighted means of r. So no centroid is stored, only mu+ - mu-. The own-side score has one centroid per side and no sign.
    """
    contrast = options.score == "contrast"
    sides = torch.arange(len(chunks[0].tiles.tokens), device=chunks[0].size.device)
    flip = (1 - 2 * (sides % 2) if contrast else torch.ones_like(sides)).double()
    norms = None if contrast else sweeps.squared_norms()
    weights = [chunk.size for chunk in chunks]
    tokens = torch.stack([chunk.tiles.tokens for chunk in chunks]).sum(0).double()
    raw: list[Tensor] = []
    slope = shift = torch.zeros_like(flip)
    measured: DeviceTemperatures | None = None
    for refinement in range(options.refinements + 1):
        mass = options.reduce(TensorSum(side_sums(weights, chunks))).total[:, 0].clamp(min=FLOOR)
        direction = options.reduce(TensorSum(sweeps.sums(weights, 2 * flip / mass, by_scope=contrast))).total
        twice = sweeps.dots(direction, by_scope=contrast)
        raw = twice if norms is None else [dot - norm for dot, norm in zip(twice, norms, strict=True)]
        columns = [torch.stack([weight * dot, value]) for weight, dot, value in zip(weights, twice, raw, strict=True)]
        sums = side_sums(columns, chunks)
        weighted = options.reduce(TensorSum(sums[:, 0])).total / mass
        shift = -0.5 * (flip * _for_both(weighted.view(-1, 2).sum(1)) if contrast else weighted)
        # The lag: margins are divided by the previous margins' temperature, the first ones by their own.
        lagged = measured
        if measured is None or refinement < options.refinements:
            measured = _measure(raw, chunks, tokens, sums[:, 1], flip, shift, options)
        gammas = measured if lagged is None else lagged
        slope, shift = flip / gammas.sides, shift / gammas.sides
        if refinement < options.refinements:
            weights = [chunk.size * _assign(value, slope, shift, chunk, options) for value, chunk in zip(raw, chunks, strict=True)]
        else:
            measured = gammas
    assert measured is not None
    if options.coefficient_map == "symmetric":
        again = measured.sides / _for_both(measured.pooled())
        slope, shift = slope * again, shift * again
    final = _decisiveness if options.coefficient_map == "symmetric" else _assign
    return MarginScores([final(value, slope, shift, chunk, options) for value, chunk in zip(raw, chunks, strict=True)], measured)


def _measure(
    raw: Sequence[Tensor], chunks: Sequence[ChunkTiles], tokens: Tensor, sums: Tensor, flip: Tensor, shift: Tensor, options: DeltaOptions
) -> DeviceTemperatures:
    """Temperatures of the margins flip x raw + shift, in two passes to avoid cancellation."""
    if options.fixed_temperature is not None:
        positive, negative, pooled = (flip.new_full((len(flip) // 2,), gamma) for gamma in options.fixed_temperature)
        return DeviceTemperatures(torch.stack([positive, negative], 1).flatten(), pooled, 1.0)
    mean = sums / tokens.clamp(min=1)
    squares = [
        (value - mean[chunk.tiles.side].to(value.dtype)[:, None]).square().where(chunk.tiles.feature_row >= 0, 0.0)
        for value, chunk in zip(raw, chunks, strict=True)
    ]
    moments = options.reduce(SideMoments(tokens, flip * mean + shift, side_sums(squares, chunks)[:, 0]))
    return DeviceTemperatures(options.gamma_scale * moments.spread(), moments, options.gamma_scale)


def _for_both(of_scope: Float[Tensor, " scope"]) -> Float[Tensor, " side"]:
    return of_scope[:, None].expand(-1, 2).flatten()


def _scaled_margin(raw: Tensor, slope: Tensor, shift: Tensor, chunk: ChunkTiles) -> Float[Tensor, "tile slot"]:
    """Margin / temperature."""
    table = torch.stack([slope, shift], 1)[chunk.tiles.side].to(raw.dtype)
    return torch.addcmul(table[:, 1:], raw, table[:, :1])


def _assign(raw: Tensor, slope: Tensor, shift: Tensor, chunk: ChunkTiles, options: DeltaOptions) -> Float[Tensor, "tile slot"]:
    """a_it in [0, 1]; see `algorithm._assign`."""
    scaled = _scaled_margin(raw, slope, shift, chunk)
    return (scaled > 0).to(scaled.dtype) if options.assignment == "hard" else scaled.sigmoid()


def _decisiveness(raw: Tensor, slope: Tensor, shift: Tensor, chunk: ChunkTiles, options: DeltaOptions) -> Float[Tensor, "tile slot"]:
    scaled = _scaled_margin(raw, slope, shift, chunk)
    return torch.ones_like(scaled) if options.assignment == "hard" else (scaled.abs() / 2).tanh()


class LazyTemperatures(Sequence[Temperature]):
    """Temperatures of the two-sided scopes; the first access copies them from the device."""

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

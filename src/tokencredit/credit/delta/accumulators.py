"""DelTA's statistics as accumulators: `add` a chunk, `merge` another rank's, `finish`. Chunks and ranks do not change the result."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.credit.delta.vectors import TokenVectors

FLOOR = 1e-8
"""Lower bound of masses and variances, as in the authors' code."""


class Centroids(NamedTuple):
    positive: Tensor
    negative: Tensor
    one_sided: bool
    """Whether a side has no mass, so that there is nothing to discriminate."""

    @property
    def direction(self) -> Tensor:
        return self.positive - self.negative

    def with_momentum(self, past: Tensor | None, momentum: float) -> "Centroids":
        """The same midpoint, the direction d averaged with a past one: mu+- = mid +- ((1 - momentum) d + momentum past) / 2."""
        if past is None or not momentum:
            return self
        shift = (past.to(self.positive) - self.direction) * (momentum / 2)
        return self._replace(positive=self.positive + shift, negative=self.negative - shift)

    def contrast(self, vectors: TokenVectors) -> Float[Tensor, " tok"]:
        """D = ||v - mu-||^2 - ||v - mu+||^2, above 0 when nearer to the positive centroid.

        One dot product per token: D = 2 <v, mu+ - mu-> + ||mu-||^2 - ||mu+||^2.
        """
        offset = self.negative.square().sum() - self.positive.square().sum()
        return _by_chunk(vectors, self.positive - self.negative, 2.0) + offset

    def own_distance(self, vectors: TokenVectors, positive: Tensor) -> Float[Tensor, " tok"]:
        """||v - mu||^2 to the centroid of the token's own side, which is the positive one where `positive`."""
        squared = _join([chunk.squared_norm() for _, chunk in vectors.chunks()], positive.device)
        to_positive = squared - _by_chunk(vectors, self.positive, 2.0) + self.positive.square().sum()
        to_negative = squared - _by_chunk(vectors, self.negative, 2.0) + self.negative.square().sum()
        return torch.where(positive, to_positive, to_negative)


def _by_chunk(vectors: TokenVectors, direction: Tensor, factor: float) -> Float[Tensor, " tok"]:
    return _join([factor * chunk.dot(direction) for _, chunk in vectors.chunks()], direction.device)


def _join(parts: list[Tensor], device: torch.device) -> Float[Tensor, " tok"]:
    """The chunks' numbers in one tensor; empty on a rank without tokens of the scope."""
    return torch.cat(parts).double() if parts else torch.zeros(0, dtype=torch.float64, device=device)


class CentroidSums:
    """Weighted sums of vectors, and masses (summed weights), of the two sides; in float64."""

    def __init__(self) -> None:
        self.sums: list[Tensor | None] = [None, None]
        self.masses = [0.0, 0.0]

    def add(self, vectors: TokenVectors, advantage: Float[Tensor, " tok"], share: Float[Tensor, " tok"] | float = 1.0) -> "CentroidSums":
        """Weights are |A| times `share`, each token's assignment to its own side (1 at first, then a_it)."""
        for run, chunk in vectors.chunks():
            own_share = share[run] if isinstance(share, Tensor) else share
            for side, sign in enumerate((1.0, -1.0)):
                weight = (sign * advantage[run]).clamp(min=0) * own_share
                summed = chunk.weighted_sum(weight).double()
                previous = self.sums[side]
                self.sums[side] = summed if previous is None else previous + summed
                self.masses[side] += float(weight.sum())
        return self

    def merge(self, other: "CentroidSums") -> "CentroidSums":
        merged = CentroidSums()
        merged.masses = [mine + theirs for mine, theirs in zip(self.masses, other.masses, strict=True)]
        merged.sums = [
            theirs if mine is None else mine if theirs is None else mine + theirs
            for mine, theirs in zip(self.sums, other.sums, strict=True)
        ]
        return merged

    def finish(self) -> Centroids:
        one_sided = min(self.masses) == 0.0
        positive, negative = (
            torch.zeros(()) if summed is None else summed / max(mass, FLOOR) for summed, mass in zip(self.sums, self.masses, strict=True)
        )
        return Centroids(positive, negative, one_sided)


class MeanDirection:
    """The direction between the centroids, averaged over scopes with their masses as weights."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.mass = 0.0

    def add(self, direction: Tensor, mass: float) -> "MeanDirection":
        weighted = mass * direction
        self.total = weighted if self.total is None else self.total + weighted
        self.mass += mass
        return self

    def finish(self) -> Tensor | None:
        return None if self.total is None else self.total / max(self.mass, FLOOR)


class Temperature(NamedTuple):
    """Standard deviations of the margins: on each side, and of the contrast D over both sides."""

    positive: float
    negative: float
    pooled: float


class MarginMoments:
    """Unweighted population moments (count, mean, sum of squared deviations), merged by Chan's rule, which avoids cancellation."""

    def __init__(self) -> None:
        self.moments = [(0.0, 0.0, 0.0)] * 3

    def add(self, margin: Float[Tensor, " tok"], advantage: Float[Tensor, " tok"]) -> "MarginMoments":
        """`margin` is positive towards a token's own side; the contrast is the margin times the sign of the advantage."""
        contrast = margin * advantage.sign()
        parts = (margin[advantage > 0], margin[advantage < 0], contrast[advantage != 0])
        self.moments = [_merge(mine, _moments(part)) for mine, part in zip(self.moments, parts, strict=True)]
        return self

    def merge(self, other: "MarginMoments") -> "MarginMoments":
        merged = MarginMoments()
        merged.moments = [_merge(mine, theirs) for mine, theirs in zip(self.moments, other.moments, strict=True)]
        return merged

    def finish(self) -> Temperature:
        return Temperature(*(max(deviation / max(count, 1.0), FLOOR) ** 0.5 for count, _, deviation in self.moments))


def _moments(values: Tensor) -> tuple[float, float, float]:
    if not len(values):
        return 0.0, 0.0, 0.0
    mean = values.mean()
    return float(len(values)), float(mean), float((values - mean).square().sum())


def _merge(one: tuple[float, float, float], two: tuple[float, float, float]) -> tuple[float, float, float]:
    count = one[0] + two[0]
    if count == 0:
        return one
    gap = two[1] - one[1]
    return count, one[1] + gap * two[0] / count, one[2] + two[2] + gap * gap * one[0] * two[0] / count


class ScoreMass:
    """Sum of scores and count of tokens; `finish` returns their mean, the paper's Z / N."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, score: Float[Tensor, " tok"]) -> "ScoreMass":
        self.total += float(score.sum())
        self.count += len(score)
        return self

    def merge(self, other: "ScoreMass") -> "ScoreMass":
        merged = ScoreMass()
        merged.total, merged.count = self.total + other.total, self.count + other.count
        return merged

    def finish(self) -> float:
        return self.total / max(self.count, 1)


class ScopeIds:
    """Ids of the scopes that exist on any rank, in the same order on every rank."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def add(self, scope: Tensor) -> "ScopeIds":
        self.ids |= {int(index) for index in scope.unique()}
        return self

    def merge(self, other: "ScopeIds") -> "ScopeIds":
        merged = ScopeIds()
        merged.ids = self.ids | other.ids
        return merged

    def finish(self) -> list[int]:
        return sorted(self.ids)

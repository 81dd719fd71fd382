"""DelTA's options, and its plain algorithm for one scope: centroids, margins, temperatures, refinements, coefficients."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.credit.delta.accumulators import Centroids, CentroidSums, MarginMoments, ScoreMass, Temperature
from tokencredit.credit.delta.vectors import TokenVectors

Scope = Literal["batch", "group", "shard"]
Proxy = Literal["row", "hidden-gradient", "head"]
Score = Literal["contrast", "own-side", "random"]
Assignment = Literal["soft", "hard"]
CoefficientMap = Literal["bounded", "raw", "symmetric"]
Reduce = Callable[[Any], Any]
"""Merges an accumulator over ranks; every rank receives the same result."""


def this_rank_only(accumulator: Any) -> Any:
    """The reduction of a single rank."""
    return accumulator


CHOICES = {"scope": Scope, "proxy": Proxy, "score": Score, "assignment": Assignment, "coefficient_map": CoefficientMap}


class DeltaOptions(NamedTuple):
    """All settings other than the batch's tensors. Defaults are the published ones."""

    lam_min: float = 0.8
    lam_max: float = 1.2
    refinements: int = 1
    scope: Scope = "batch"
    shards: int = 2
    proxy: Proxy = "row"
    top_k: int = 32
    score: Score = "contrast"
    assignment: Assignment = "soft"
    coefficient_map: CoefficientMap = "bounded"
    normalize: bool = True
    gamma_scale: float = 1.0
    fixed_temperature: Temperature | None = None
    momentum: float = 0.0
    """Weight of past steps in the direction between the centroids (ours)."""
    past: Tensor | None = None
    """That direction averaged over past steps; None in the first step."""
    seed: int = 0
    reduce: Reduce = this_rank_only

    def check(self) -> None:
        if not 0 <= self.lam_min <= self.lam_max or self.lam_max <= 0:
            raise ValueError(f"lam_min is {self.lam_min} and lam_max {self.lam_max}; need 0 <= lam_min <= lam_max and lam_max > 0")
        for name, least in (("refinements", 0), ("shards", 1), ("top_k", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name, kind in CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(get_args(kind))}")
        for gamma in (self.gamma_scale, *(self.fixed_temperature or ())):
            if not 0 < gamma < float("inf"):
                raise ValueError(f"gamma_scale or fixed_temperature holds {gamma}; a temperature must be above 0 and finite")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must be a share of at least 0 and below 1")
        if self.momentum and self.score != "contrast":
            raise ValueError(f"momentum needs score 'contrast': score {self.score!r} has no direction to average over steps")
        if self.score == "own-side" and self.coefficient_map == "symmetric":
            raise ValueError("coefficient_map 'symmetric' needs score 'contrast': the distance to the own side differs by side")
        if self.score == "own-side" and self.assignment == "hard":
            raise ValueError("assignment 'hard' needs score 'contrast': minus a distance is never above 0")


class ScopeResult(NamedTuple):
    coefficient: Float[Tensor, " tok"]
    temperature: Temperature | None
    """None where nothing was measured: a one-sided scope, or random scores."""
    first: Centroids | None = None
    """Centroids before any refinement, None where `temperature` is. Refined ones in the state would confirm its own direction."""
    mass: float = 0.0
    """Sum of |A| over the scope's tokens."""


def scope_coefficients(vectors: TokenVectors, advantage: Float[Tensor, " tok"], options: DeltaOptions) -> ScopeResult:
    """Coefficients of one scope's tokens; all 1 if a side has no mass (our reading of the empty case).

    Random scores are drawn from `options.seed`; the caller gives each scope and each rank a different one.
    """
    sums = options.reduce(CentroidSums().add(vectors, advantage))
    centroids = first = sums.finish()
    if centroids.one_sided:
        return ScopeResult(torch.ones_like(advantage), None)
    if options.score == "random":
        draw = torch.rand(len(vectors), generator=torch.Generator().manual_seed(options.seed), dtype=advantage.dtype)
        return ScopeResult(_coefficient(draw.to(advantage.device), options), None)
    margin = _margin(centroids, vectors, advantage, options)
    temperature = _temperature(margin, advantage, options)
    for _ in range(options.refinements):
        share = _assign(margin, advantage, temperature, options)
        centroids = options.reduce(CentroidSums().add(vectors, advantage, share)).finish()
        # The lag: the temperature is measured on the margins at the previous centroids.
        temperature = _temperature(margin, advantage, options)
        margin = _margin(centroids, vectors, advantage, options)
    symmetric = options.coefficient_map == "symmetric"
    score = _decisiveness(margin, temperature, options) if symmetric else _assign(margin, advantage, temperature, options)
    return ScopeResult(_coefficient(score.where(advantage != 0, 0.0), options), temperature, first, sum(sums.masses))


def _margin(centroids: Centroids, vectors: TokenVectors, advantage: Tensor, options: DeltaOptions) -> Float[Tensor, " tok"]:
    """Margin towards the token's own side: the contrast with the sign of the advantage, or minus the distance to the own centroid."""
    centroids = centroids.with_momentum(options.past, options.momentum)
    if options.score == "own-side":
        return -centroids.own_distance(vectors, advantage > 0)
    return centroids.contrast(vectors) * advantage.sign()


def _temperature(margin: Tensor, advantage: Tensor, options: DeltaOptions) -> Temperature:
    if options.fixed_temperature is not None:
        return options.fixed_temperature
    measured = options.reduce(MarginMoments().add(margin, advantage)).finish()
    return Temperature(*(options.gamma_scale * gamma for gamma in measured))


def _assign(margin: Tensor, advantage: Tensor, temperature: Temperature, options: DeltaOptions) -> Float[Tensor, " tok"]:
    """a_it in [0, 1]: soft maximises a margin + gamma h(a), h the entropy; hard is its limit at gamma = 0."""
    if options.assignment == "hard":
        return (margin > 0).to(margin.dtype)
    gamma = torch.where(advantage > 0, margin.new_tensor(temperature.positive), margin.new_tensor(temperature.negative))
    return torch.sigmoid(margin / gamma)


def _decisiveness(margin: Tensor, temperature: Temperature, options: DeltaOptions) -> Float[Tensor, " tok"]:
    """|2 sigma(D / gamma) - 1| with one gamma for both sides, so that a token's score does not depend on its side."""
    if options.assignment == "hard":
        return torch.ones_like(margin)
    return torch.tanh(margin.abs() / (2 * temperature.pooled))


def _coefficient(score: Float[Tensor, " tok"], options: DeltaOptions) -> Float[Tensor, " tok"]:
    """Map scores to [lam_min, lam_max] and divide by their mean.

    The mean is computed as low + (high - low) x mean score, which is exactly `low` if low = high: then this is DAPO bit for bit.
    """
    low, high = (0.0, 1.0) if options.coefficient_map == "raw" else (options.lam_min, options.lam_max)
    coefficient = low + (high - low) * score
    if not options.normalize:
        return coefficient
    mean = low + (high - low) * options.reduce(ScoreMass().add(score)).finish()
    return coefficient / mean if mean > 0 else coefficient

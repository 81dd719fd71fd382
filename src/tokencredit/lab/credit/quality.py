"""The quality of small-batch gradients from inner products: cosine to the true direction, bias, signal-to-noise ratio.

    cosine   of each batch's gradient g to g*
    bias     cosine of the mean gradient to g*
    snr      (mean of <g, u>)^2 / mean of |g - <g, u> u|^2,  u = g* / |g*|

Each is computed once as it is and once with the gradient of entropy projected out of g and g*, which removes plain sharpening.
Intervals resample prompts with replacement: tokens and responses of one prompt are not independent, prompts are.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.stats import critical

INTERVAL = (0.025, 0.975)


class Bounded(NamedTuple):
    """An estimate with its 95 % percentile interval over prompts; NaN if undefined."""

    value: float
    low: float
    high: float


def redrawn(prompts: int, *, draws: int, seed: int) -> Float[Tensor, "draw grp"]:
    """How often each prompt is in each of `draws` resamples. The first row is the sample itself."""
    picked = torch.randint(prompts, (draws, prompts), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(draws, prompts, dtype=torch.float64).scatter_add_(1, picked, torch.ones(picked.shape, dtype=torch.float64))
    return torch.cat([torch.ones(1, prompts, dtype=torch.float64), times])


def bounded(values: Float[Tensor, " draw"]) -> Bounded:
    """The first value is that of the sample itself, the others those of its resamples; NaN ones are left out."""
    if len(values) < 2 or bool(values[1:].isnan().all()):
        return Bounded(float(values[0]), float("nan"), float("nan"))
    low, high = values[1:].nanquantile(torch.tensor(INTERVAL, dtype=values.dtype)).tolist()
    return Bounded(float(values[0]), low, high)


class Paired(NamedTuple):
    """A mean of paired differences with its 95 % interval; NaN if undefined."""

    mean: float
    low: float
    high: float
    t: float
    pairs: int


def paired(differences: Sequence[float]) -> Paired:
    """Student's interval of the mean. Fewer than two pairs have no interval; differences without spread have t 0 or NaN."""
    count = len(differences)
    if count == 0:
        return Paired(math.nan, math.nan, math.nan, math.nan, 0)
    mean = math.fsum(differences) / count
    if count == 1:
        return Paired(mean, math.nan, math.nan, math.nan, 1)
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / (count - 1) / count)
    if error == 0:
        return Paired(mean, mean, mean, 0.0 if mean == 0 else math.nan, count)
    reach = critical(count - 1) * error
    return Paired(mean, mean - reach, mean + reach, mean / error, count)


def surviving_t(comparisons: int, freedom: int, level: float = 0.05) -> float:
    """The |t| that stays significant at `level` when so many comparisons were made (Bonferroni)."""
    return critical(freedom, level / max(1, comparisons))


LEAST_SIGNAL = 0.25
"""The least part of a mean's square that must not be noise for its cosine to be corrected for noise."""


class Axes(NamedTuple):
    """Inner products of the reference gradient g* and the entropy gradient h, with which every gradient is compared."""

    reference: float
    """<g*, g*>"""
    entropy: float
    """<h, h>, h the gradient of entropy"""
    lean: float
    """<g*, h>"""
    agreement: float
    """Cosine between the two halves that g* is the mean of."""

    @property
    def reliability(self) -> float:
        """Cosine of g* to the gradient without noise, from two halves with independent noise: sqrt(2 c / (1 + c)); NaN for c <= 0."""
        return math.sqrt(2 * self.agreement / (1 + self.agreement)) if self.agreement > 0 else math.nan

    @property
    def toward_sharpness(self) -> float:
        """cos(g*, -h)"""
        size = self.reference * self.entropy
        return -self.lean / math.sqrt(size) if size > 0 else math.nan


class Halves(NamedTuple):
    """Inner products of two gradients a, b that g* is the mean of, and of the gradient of entropy h."""

    aa: float
    bb: float
    ab: float
    ah: float
    bh: float
    hh: float


def axes_of(halves: Halves) -> Axes:
    return Axes(
        reference=(halves.aa + halves.bb + 2 * halves.ab) / 4,
        entropy=halves.hh,
        lean=(halves.ah + halves.bh) / 2,
        agreement=ratio(halves.ab, halves.aa, halves.bb),
    )


def halves_without_entropy(halves: Halves) -> Halves:
    """After the parts along h are taken out of both."""
    aa, bb, ab, ah, bh, hh = halves
    return halves if hh <= 0 else Halves(max(0.0, aa - ah * ah / hh), max(0.0, bb - bh * bh / hh), ab - ah * bh / hh, 0.0, 0.0, hh)


class Products(NamedTuple):
    """Of one batch's gradient."""

    along: float
    """<g, g*>"""
    square: float
    """<g, g>"""
    lean: float
    """<g, h>"""


class View(NamedTuple):
    """A method's gradients seen with or without the entropy direction."""

    cosines: list[float]
    """0 for a batch without a gradient."""
    mean_cosine: float
    mean_cosine_corrected: float
    """Without what the noise of the mean and of g* takes away; may come out a little above 1. NaN where noise is most of the mean."""
    snr: float


def ratio(value: float, *squares: float) -> float:
    """A product over the root of squared lengths; 0 where a length is 0."""
    product = math.prod(squares)
    return value / math.sqrt(product) if product > 0 else 0.0


def without_entropy(products: Products, axes: Axes) -> Products:
    """Inner products of g and g* after their parts along h are taken out."""
    if axes.entropy <= 0:
        return products
    return Products(
        products.along - products.lean * axes.lean / axes.entropy, max(0.0, products.square - products.lean**2 / axes.entropy), 0.0
    )


def view(batches: Sequence[Products], mean: Products, axes: Axes) -> View:
    """`mean` holds the products of the mean gradient over the batches."""
    count = len(batches)
    along = math.fsum(one.along for one in batches) / count
    across = math.fsum(one.square - one.along**2 / axes.reference for one in batches) / count if axes.reference > 0 else 0.0
    squares = math.fsum(one.square for one in batches)
    # The mean's square contains each batch's noise once; products of different batches contain none.
    clean = (count**2 * mean.square - squares) / (count * (count - 1)) if count > 1 else math.nan
    corrected = ratio(along, axes.reference, clean) / axes.reliability if clean > LEAST_SIGNAL * mean.square else math.nan
    return View(
        cosines=[ratio(one.along, one.square, axes.reference) for one in batches],
        mean_cosine=ratio(mean.along, mean.square, axes.reference),
        mean_cosine_corrected=corrected,
        snr=along**2 / axes.reference / across if across > 0 and axes.reference > 0 else math.nan,
    )


def difference(own: Sequence[float], other: Sequence[float]) -> Paired:
    return paired([one - two for one, two in zip(own, other, strict=True)])


def rollouts_needed(cosine: float, baseline: float, limit: float, rollouts: float) -> float:
    """Rollouts with which the baseline reaches `cosine`, when `rollouts` give it `baseline` and infinitely many give it `limit`.

    A batch of n rollouts gives g = m + noise, with |m|^2 = S and noise of power N/n in very many directions, so
    cos^2(n) = limit^2 / (1 + N / (S n)), and from the batches measured N / S = rollouts (limit^2 / baseline^2 - 1). Solved for n:

        n = rollouts (limit^2 / baseline^2 - 1) / (limit^2 / cosine^2 - 1)

    Infinite where the baseline never gets there (cosine >= limit), 0 for a cosine that nothing needs, NaN where the baseline itself is
    not distinguishable from 0 or from its limit.
    """
    if not (0 < baseline < limit):
        return math.nan
    if math.isnan(cosine):
        return math.nan
    if cosine <= 0:
        return 0.0
    if cosine >= limit:
        return math.inf
    return rollouts * (limit**2 / baseline**2 - 1) / (limit**2 / cosine**2 - 1)

"""How far apart the two sides' gradient centroids lie, and whether a method's coefficients move them apart (DelTA's premise)."""

import math
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from tokencredit.credit.delta.accumulators import CentroidSums
from tokencredit.credit.delta.vectors import TokenVectors


class SideContrast(NamedTuple):
    cosine: float
    distance: float
    relative_distance: float
    """||mu+ - mu-|| / (||mu+|| + ||mu-||): 0 for equal centroids, 1 for opposite ones."""


class CentroidContrast(NamedTuple):
    before: SideContrast
    """Tokens weighted by |A|."""
    after: SideContrast | None
    """Tokens weighted by |A| c; None for a method without coefficients."""


def centroid_contrast(
    vectors: TokenVectors, advantage: Float[Tensor, " tok"], coefficient: Float[Tensor, " tok"] | None = None
) -> CentroidContrast:
    """mu+ and mu-, weighted means of the token vectors of each side; coefficients are >= 0. One-sided batches give NaN."""
    before = _side_contrast(vectors, advantage, 1.0)
    return CentroidContrast(before, None if coefficient is None else _side_contrast(vectors, advantage, coefficient))


def _side_contrast(vectors: TokenVectors, advantage: Float[Tensor, " tok"], share: Float[Tensor, " tok"] | float) -> SideContrast:
    positive, negative, one_sided = CentroidSums().add(vectors, advantage, share).finish()
    if one_sided:
        return SideContrast(math.nan, math.nan, math.nan)
    sizes = float(positive.norm()), float(negative.norm())
    distance = float((positive - negative).norm())
    cosine = float((positive * negative).sum()) / (sizes[0] * sizes[1]) if min(sizes) > 0 else math.nan
    return SideContrast(cosine, distance, distance / sum(sizes) if sum(sizes) > 0 else math.nan)

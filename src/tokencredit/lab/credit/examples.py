"""Which responses are shown of a recipe: from where its credit disagrees most with the truth to a typical one."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def disagreement(
    credit: Float[Tensor, "seq tok"],
    truth: Float[Tensor, "seq tok"],
    known: Bool[Tensor, "seq tok"],
    decisive: Bool[Tensor, "seq tok"],
) -> Float[Tensor, " seq"]:
    """1 - cos(credit, A*) over the known tokens of each response: 0 is proportional to the truth, 2 is its opposite.

    Half the squared distance of the two at length 1. NaN where a response has no decisive token or no credit at all: the shape
    of noise alone, or of nothing, cannot be right or wrong.
    """
    one, other = (value.double().where(known, 0.0) for value in (credit, truth))
    lengths = one.norm(dim=1) * other.norm(dim=1)
    apart = 1 - (one * other).sum(1) / lengths
    return apart.where((decisive & known).any(1) & (lengths > 0), torch.nan)


def worst_to_typical(apart: Float[Tensor, " seq"], count: int) -> list[int]:
    """Rows at `count` ranks, evenly from the largest value to the median one; ties keep their order, NaN is never chosen."""
    order = [row for row in apart.argsort(descending=True, stable=True).tolist() if not apart[row].isnan()]
    if not order or not count:
        return []
    median = (len(order) - 1) // 2
    return list(dict.fromkeys(order[round(place * median / max(1, count - 1))] for place in range(count)))

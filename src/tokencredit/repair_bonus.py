"""IBPO: a failure that its own policy repairs, shown a sibling, is worth more than one it cannot (2605.16302)."""

import torch
from jaxtyping import Float
from torch import Tensor


def repair_bonus(
    score: Float[Tensor, " seq"],
    repaired: Float[Tensor, " seq"],
    *,
    weight: float = 0.6,
    repair_value: float = 0.5,
    correct_above: float = 0.5,
) -> Float[Tensor, " seq"]:
    """Weight x repair_value x (share of references whose revision is right) for failures, 0 for successes.

    A response that could not be graded (NaN score) is neither: 0.
    """
    if bool(((repaired < 0) | (repaired > 1) | repaired.isnan()).any()):
        raise ValueError("repaired must be a share of references between 0 and 1")
    return torch.where(score <= correct_above, weight * repair_value * repaired.double(), torch.zeros_like(repaired.double()))

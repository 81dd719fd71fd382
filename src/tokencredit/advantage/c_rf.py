"""C-RF: plus or minus by outcome, the two sides of the batch weighing the same (2606.17250)."""

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PRESETS, comparable


def c_rf_advantage(score: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, threshold: float = 0.0) -> Float[Tensor, " seq"]:
    """A_i = +B/(2 B+) where the score is above threshold, -B/(2 B-) elsewhere; B graded responses, B+ and B- on either side.

    The score is the verifier's: shaping must not turn a failure into a success. Where one side is missing the other gets
    +1 or -1. `group` is not read. A NaN score gives 0.
    """
    value = comparable(score, PRESETS["tokencredit"])
    graded = ~value.isnan()
    success = graded & (value > threshold)
    failure = graded & ~success
    sides = 2 if success.any() and failure.any() else 1
    mass = graded.sum(dtype=value.dtype) / sides
    return mass / success.sum().clamp(min=1) * success - mass / failure.sum().clamp(min=1) * failure

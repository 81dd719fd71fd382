"""FADE's static sign probe: failures weigh 1 / delta (2607.01490)."""

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.focal import focal_advantage


def asym_advantage(reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, delta: float = 0.5) -> Float[Tensor, " seq"]:
    """A_i = R_i - mean_g, divided by delta where R_i < mean_g; a group of one and a NaN reward give 0."""
    return focal_advantage(reward, group, alpha=1.0, delta=delta)

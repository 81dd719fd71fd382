"""FADE's static difficulty probe: prompts that are solved rarely weigh more (2607.01490)."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.focal import focal_advantage


def power_advantage(
    reward: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    alpha: float = 2.0,
    delta: float = 1.0,
    scale: Literal["none", "peak"] = "none",
) -> Float[Tensor, " seq"]:
    """A_i = C (1 - mean_g)^(alpha - 1) (R_i - mean_g): a mass of C p (1 - p)^alpha on either side, over delta on the failures'.

    `scale` "none" takes C = 1; "peak" lifts the largest mass, at p = 1 / (1 + alpha), to 1/4. Edge cases: focal.py.
    """
    if scale not in ("none", "peak"):
        raise ValueError(f"scale is {scale!r}; it must be none or peak")
    constant = (1 + alpha) / 4 * (1 + 1 / alpha) ** alpha if scale == "peak" else 1.0
    return constant * focal_advantage(reward, group, alpha=alpha, delta=delta)

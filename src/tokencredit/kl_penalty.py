"""KL in the reward: what drifting from a frozen reference costs a whole response."""

from jaxtyping import Bool, Float
from torch import Tensor


def kl_penalty(divergence: Float[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"], *, beta: float) -> Float[Tensor, " seq"]:
    """-beta x the sum of a response's per-token divergence estimates, taken at sampling time; carries no gradient."""
    return -beta * divergence.detach().where(mask, 0.0).sum(-1)

"""The importance ratio, computed one way everywhere."""

from jaxtyping import Float
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def importance_ratio(logp: Float[Tensor, "*shape"], old_logp: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(logp - old_logp), the exponent clamped to +-20 so that one stray token cannot overflow the loss."""
    return (logp - old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()

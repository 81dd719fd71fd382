"""Estimators of the divergence from a frozen reference, per sampled token (k1, k2, k3)."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.ratio import LOG_RATIO_LIMIT

KlEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(
    logp: Float[Tensor, "*shape"], reference_logp: Float[Tensor, "*shape"], *, kind: KlEstimator = "k3"
) -> Float[Tensor, "*shape"]:
    """With d = logp - reference: k1 = d (unbiased), k2 = d^2/2 (its gradient is unbiased), k3 = e^-d + d - 1 (unbiased, >= 0)."""
    if kind == "k1":
        return logp - reference_logp
    if kind == "k2":
        return (logp - reference_logp).square() / 2
    if kind == "k3":
        log_ratio = (reference_logp - logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return log_ratio.exp() - log_ratio - 1
    raise ValueError(f"kind is {kind!r}; it must be k1, k2 or k3")

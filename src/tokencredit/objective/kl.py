"""Estimators of the divergence from a frozen reference, per sampled token (k1, k2, k3)."""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs
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


def with_kl(objective: Objective, *, beta: float, estimator: KlEstimator) -> Objective:
    """Add beta x KL to a frozen reference to every token's loss."""

    def token_loss(inputs: TokenInputs, statistic: Any) -> Tensor:
        if inputs.reference_logp is None:
            raise ValueError("reference_logp is missing; a KL term in the loss needs the reference's log-probs")
        return objective.token_loss(inputs, statistic) + beta * kl_estimate(inputs.logp, inputs.reference_logp, kind=estimator)

    return Objective(token_loss=token_loss, statistic=objective.statistic)

"""The per-token surrogate and its aggregation. `OBJECTIVES` is the table: name -> function making an Objective."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tokencredit.objective.aggregate import token_weight
from tokencredit.objective.kl import KlEstimator, kl_estimate
from tokencredit.objective.ppo_clip import clipped_surrogate
from tokencredit.objective.stage import Objective, StepStatistic, TokenInputs


def ppo_clip(*, clip_low: float, clip_high: float, dual_clip: float | None) -> Objective:
    def token_loss(inputs: TokenInputs, statistic: None) -> Tensor:
        return -clipped_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)

    return Objective(token_loss=token_loss, silent_without_credit=True)


def with_kl(objective: Objective, *, beta: float, estimator: KlEstimator) -> Objective:
    """Add beta x KL to a frozen reference to every token's loss."""

    def token_loss(inputs: TokenInputs, statistic: Any) -> Tensor:
        if inputs.reference_logp is None:
            raise ValueError("reference_logp is missing; a KL term in the loss needs the reference's log-probs")
        return objective.token_loss(inputs, statistic) + beta * kl_estimate(inputs.logp, inputs.reference_logp, kind=estimator)

    return Objective(token_loss=token_loss, statistic=objective.statistic)


OBJECTIVES: dict[str, Callable[..., Objective]] = {"ppo-clip": ppo_clip}

__all__ = [
    "OBJECTIVES",
    "Objective",
    "StepStatistic",
    "TokenInputs",
    "clipped_surrogate",
    "kl_estimate",
    "token_weight",
    "with_kl",
]

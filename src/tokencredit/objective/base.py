"""The form every objective takes: a per-token loss, and statistics of the whole optimizer step if it needs any.

How token losses become one number: token weights here, the denominator in the plan. No loss counts tokens.

The importance ratio, computed one way everywhere.

Estimators of the divergence from a frozen reference, per sampled token (k1, k2, k3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.types import Aggregation


class TokenInputs(NamedTuple):
    """What an objective may see of a micro-batch. Values outside the mask are meaningless but finite."""

    logp: Float[Tensor, "seq tok"]
    old_logp: Float[Tensor, "seq tok"]
    credit: Float[Tensor, "seq tok"]
    mask: Bool[Tensor, "seq tok"]
    group: Int[Tensor, " seq"]
    reference_logp: Float[Tensor, "seq tok"] | None = None
    advantage: Float[Tensor, " seq"] | None = None
    """Of each response, whatever its tokens received; NaN where it could not be graded."""
    row: Int[Tensor, " seq"] | None = None
    """Names of the responses, the same however a step is cut."""
    seed: int = 0
    """For objectives that draw; one per optimizer step."""
    correction: Float[Tensor, "seq tok"] | None = None
    """Weight for the difference between sampler and trainer."""


@runtime_checkable
class StepStatistic(Protocol):
    """Gathered without gradient over every micro-batch of an optimizer step before its first one is used."""

    def add(self, inputs: TokenInputs) -> None: ...

    def finish(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`token_loss(inputs, statistic)` is minimised and never reduces; `statistic` is None unless declared."""

    token_loss: Callable[[TokenInputs, Any], Tensor]
    statistic: Callable[[], StepStatistic] | None = None
    silent_without_credit: bool = False
    """Loss and gradient of a token without credit are exactly 0, so an engine may leave such responses out of its passes."""


def token_weight(mask: Bool[Tensor, "seq tok"], length: Float[Tensor, " seq"], *, aggregation: Aggregation) -> Float[Tensor, "seq tok"]:
    """1 on every token of the mask; `sequence-mean` gives 1/T_i, so that every response weighs the same.

    `length` is T_i, the loss tokens of the whole response; an empty response weighs nothing.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation is {aggregation!r}; it must be one of {', '.join(get_args(Aggregation))}")
    weight = mask.to(length.dtype)
    return weight / length.clamp(min=1)[:, None] if aggregation == "sequence-mean" else weight


LOG_RATIO_LIMIT = 20.0


def importance_ratio(logp: Float[Tensor, "*shape"], old_logp: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(logp - old_logp), the exponent clamped to +-20 so that one stray token cannot overflow the loss."""
    return (logp - old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


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

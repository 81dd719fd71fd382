"""The interface of objectives, and what they share: token weights, the importance ratio, KL estimators."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.types import Aggregation


class TokenInputs(NamedTuple):
    """The tensors of one micro-batch. Values outside the mask are meaningless but finite."""

    logp: Float[Tensor, "seq tok"]
    old_logp: Float[Tensor, "seq tok"]
    credit: Float[Tensor, "seq tok"]
    mask: Bool[Tensor, "seq tok"]
    group: Int[Tensor, " seq"]
    reference_logp: Float[Tensor, "seq tok"] | None = None
    advantage: Float[Tensor, " seq"] | None = None
    """Advantage of each response before credit; NaN for an ungraded one."""
    row: Int[Tensor, " seq"] | None = None
    """Id of each response, the same for every cut of the optimizer step into micro-batches."""
    seed: int = 0
    """Seed for objectives that sample tokens; one per optimizer step."""
    correction: Float[Tensor, "seq tok"] | None = None
    """Importance weight for the difference between sampler and trainer; see `correction_weight`."""


@runtime_checkable
class StepStatistic(Protocol):
    """Accumulated without gradient over all micro-batches of an optimizer step, before the first one is trained on."""

    def add(self, inputs: TokenInputs) -> None: ...

    def finish(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`token_loss(inputs, statistic)` is minimised and not reduced; its statistic is None if `statistic` is None."""

    token_loss: Callable[[TokenInputs, Any], Tensor]
    statistic: Callable[[], StepStatistic] | None = None
    silent_without_credit: bool = False
    """Loss and gradient of a token without credit are exactly 0, so an engine may skip responses without credit."""


def token_weight(mask: Bool[Tensor, "seq tok"], length: Float[Tensor, " seq"], *, aggregation: Aggregation) -> Float[Tensor, "seq tok"]:
    """Weight of each token in the sum of losses: 1 on the mask, or 1/T_i for `sequence-mean`, so that every response weighs the same.

    `length` is T_i, the loss tokens of the response; an empty response has weight 0. The denominator comes from the plan: no
    objective counts tokens.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation is {aggregation!r}; it must be one of {', '.join(get_args(Aggregation))}")
    weight = mask.to(length.dtype)
    return weight / length.clamp(min=1)[:, None] if aggregation == "sequence-mean" else weight


LOG_RATIO_LIMIT = 20.0


def importance_ratio(logp: Float[Tensor, "*shape"], old_logp: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(logp - old_logp), the exponent clamped to +-20 so that a single token cannot overflow the loss."""
    return (logp - old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


KlEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(
    logp: Float[Tensor, "*shape"], reference_logp: Float[Tensor, "*shape"], *, kind: KlEstimator = "k3"
) -> Float[Tensor, "*shape"]:
    """Estimate of KL(policy || reference) per sampled token, with d = logp - reference_logp.

    k1 = d (unbiased), k2 = d^2 / 2 (its gradient is unbiased), k3 = e^-d + d - 1 (unbiased and never negative).
    """
    if kind == "k1":
        return logp - reference_logp
    if kind == "k2":
        return (logp - reference_logp).square() / 2
    if kind == "k3":
        log_ratio = (reference_logp - logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return log_ratio.exp() - log_ratio - 1
    raise ValueError(f"kind is {kind!r}; it must be k1, k2 or k3")


def with_kl(objective: Objective, *, beta: float, estimator: KlEstimator) -> Objective:
    """Add beta x the KL estimate from a frozen reference to every token's loss."""

    def token_loss(inputs: TokenInputs, statistic: Any) -> Tensor:
        if inputs.reference_logp is None:
            raise ValueError("reference_logp is missing; a KL term in the loss needs the reference's log-probs")
        return objective.token_loss(inputs, statistic) + beta * kl_estimate(inputs.logp, inputs.reference_logp, kind=estimator)

    return Objective(token_loss=token_loss, statistic=objective.statistic)

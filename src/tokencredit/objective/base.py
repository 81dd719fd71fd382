"""The form every objective takes: a per-token loss, and statistics of the whole optimizer step if it needs any."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


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

"""Terms that stand beside the stages: divergence from a reference, and correction for a sampler that differs."""

from typing import Annotated, Literal

from pydantic import model_validator

from tokencredit.config.base import CODE, OURS, Frozen, NonNegative, OnlyWhen, Positive


class Kl(Frozen):
    """Optional divergence from the frozen starting policy."""

    beta: Annotated[NonNegative, OURS] = 0.0
    """Weight; 0 turns it off and loads no reference."""
    estimator: Annotated[Literal["k1", "k2", "k3"], CODE] = "k3"
    """k1 = log-ratio, k2 = half its square, k3 = the non-negative unbiased form."""
    place: Annotated[Literal["loss", "reward"], CODE] = "loss"
    """Added to every token's loss, or taken from every response's reward."""


_ON = OnlyWhen("kind", ("tis", "mis"))


class Correction(Frozen):
    """Optional importance correction where the sampler's log-probs differ from the trainer's."""

    kind: Annotated[Literal["none", "tis", "mis"], OURS] = "none"
    """tis truncates the ratio trainer / sampler at cap; mis drops what lies beyond it."""
    level: Annotated[Literal["token", "sequence"], OURS, _ON] = "token"
    """A ratio per token, or one per response (the product)."""
    cap: Annotated[Positive, CODE, _ON] = 2.0
    """Largest ratio that is used as it is."""
    floor: Annotated[NonNegative, OURS, _ON] = 0.0
    """mis drops ratios below this too; tis raises them to it."""

    @model_validator(mode="after")
    def _ordered(self) -> "Correction":
        if self.floor > self.cap:
            raise ValueError(f"correction.floor is {self.floor} but correction.cap is {self.cap}; the floor must not be above the cap")
        return self

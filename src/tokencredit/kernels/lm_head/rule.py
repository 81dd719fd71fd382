"""What a language-model head computes, and what is asked of it."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class HeadRule(NamedTuple):
    """How logits follow from r = hidden x weight: z = scale r, with a soft-cap z = cap tanh(z / cap), and then z / temperature."""

    temperature: float = 1.0
    scale: float = 1.0
    softcap: float | None = None

    @property
    def steepness(self) -> float:
        """The slope of logits by r where no cap bends it."""
        return self.scale / self.temperature

    @property
    def limit(self) -> float | None:
        """The largest logit a soft-cap lets through."""
        return None if self.softcap is None else self.softcap / self.temperature


DEFAULT_RULE = HeadRule()


class HeadStatistics(NamedTuple):
    logp: Float[Tensor, " tok"]
    """Of the given tokens; the only one with a gradient."""
    entropy: Float[Tensor, " tok"]
    squared_mass: Float[Tensor, " tok"]
    """sum_v p_v^2."""


def check_rule(rule: HeadRule) -> None:
    if not rule.temperature > 0:
        raise ValueError(f"temperature must be above 0, got {rule.temperature}")
    if not rule.scale > 0:
        raise ValueError(f"scale must be above 0, got {rule.scale}")
    if rule.softcap is not None and not rule.softcap > 0:
        raise ValueError(f"softcap must be above 0 or None, got {rule.softcap}")


def to_logits_(raw: Tensor, rule: HeadRule) -> Tensor:
    """Logits in the place of hidden x weight."""
    raw.mul_(rule.steepness)
    return raw if rule.limit is None else raw.div_(rule.limit).tanh_().mul_(rule.limit)


def slope(logits: Tensor, rule: HeadRule) -> Tensor | float:
    """The derivative of logits by hidden x weight, from the logits themselves."""
    if rule.limit is None:
        return rule.steepness
    return (logits / rule.limit).square_().neg_().add_(1).mul_(rule.steepness)

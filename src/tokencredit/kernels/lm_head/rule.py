"""The formula of LM-head logits, the statistics of its tokens, and the cut of [tok, vocab] into blocks that fit a buffer."""

from collections.abc import Iterator
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
    """Log-prob of the given tokens; the only field with a gradient."""
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
    """Overwrite hidden x weight with logits."""
    raw.mul_(rule.steepness)
    return raw if rule.limit is None else raw.div_(rule.limit).tanh_().mul_(rule.limit)


def slope(logits: Tensor, rule: HeadRule) -> Tensor | float:
    """The derivative of logits by hidden x weight, from the logits themselves."""
    if rule.limit is None:
        return rule.steepness
    return (logits / rule.limit).square_().neg_().add_(1).mul_(rule.steepness)


BUFFER_BYTES = 256 << 20
"""Default bound of a pass's temporary memory. A larger bound gives larger, more efficient products, up to about 1 GiB."""
MOST_TOKENS = 32_768
ALIGNMENT = 128


class Blocks(NamedTuple):
    tokens: int
    vocab: int


def _even_cut(length: int, most: int) -> int:
    """The size of equal runs no longer than `most`, in multiples of the alignment where that fits."""
    if length <= most:
        return length
    size = -(-length // -(-length // most))
    aligned = -(-size // ALIGNMENT) * ALIGNMENT
    return aligned if aligned <= most else size


def blocks_for(tokens: int, vocab: int, element_bytes: int, buffer_bytes: int) -> Blocks:
    """Blocks of at most `buffer_bytes` (at least one logit), with as many tokens as fit, so that weight rows are read few times."""
    elements = max(1, buffer_bytes // element_bytes)
    rows = _even_cut(tokens, max(1, min(MOST_TOKENS, elements // min(vocab, ALIGNMENT))))
    return Blocks(rows, _even_cut(vocab, max(1, elements // max(rows, 1))))


def runs(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, max(size, 1)):
        yield slice(start, min(start + size, length))

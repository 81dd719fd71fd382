"""The request and the result of a sampler, the same for every sampler from the plain loop to vLLM."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tokencredit.config.train import TrainConfig
from tokencredit.types import Rollouts, TokenScores

if TYPE_CHECKING:
    from tokencredit.policy.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    group_size: int
    """Responses to each prompt."""
    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    greedy: bool = False
    """Take the most probable token; the temperature then only scales the log-probs that are returned."""
    keep_hidden: bool = False
    """Return the hidden state that predicted each token."""
    dtype: str = "float32"
    """Precision of the forward passes."""

    @classmethod
    def from_config(cls, config: TrainConfig, *, seed: int, group_size: int | None = None) -> "SamplingParams":
        """With the configuration's temperature, length limit and precision, and its group size unless one is given."""
        sampling = config.sampling
        return cls(
            group_size=sampling.group_size if group_size is None else group_size,
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            dtype=config.dtype,
            seed=seed,
        )

    def greedily(self) -> "SamplingParams":
        """One response to each prompt, the most probable token at every position."""
        return replace(self, group_size=1, greedy=True, temperature=1.0)


class Sampled(NamedTuple):
    rollouts: Rollouts
    evidence: TokenScores
    """From the sampling passes; hidden states only with `keep_hidden`."""


class Sampler(Protocol):
    """Samples with the policy's weights at the time of the call."""

    def sample(self, policy: "Policy", prompts: Sequence[Sequence[int]], params: SamplingParams) -> Sampled:
        """`group_size` responses to each prompt, rows of a prompt next to each other, `group` numbering the prompts."""
        ...

    def release(self) -> None:
        """Free memory that only speeds up the next call."""
        ...

"""Who draws responses: the plain loop, the fast one, or vLLM. They all answer one question in the same terms."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from tokencredit.errors import ConfigError

if TYPE_CHECKING:
    from tokencredit.policy.policy import Policy
    from tokencredit.rollout.sample import Sampled

SamplerName = Literal["auto", "plain", "fast", "vllm"]


class Sampler(Protocol):
    """Weights are the policy's at the moment of asking, however often they have moved since the last time."""

    def sample(
        self,
        policy: "Policy",
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        max_new_tokens: int,
        seed: int,
        temperature: float,
        greedy: bool,
        keep_hidden: bool,
        dtype: str,
    ) -> "Sampled": ...

    def release(self) -> None:
        """Give back the memory that is only kept to be faster the next time."""
        ...


def with_sampler(policy: "Policy", name: SamplerName, *, dtype: str, memory: float = 0.4) -> "Policy":
    """The policy with the sampler asked for; auto takes the fast one on a GPU in bfloat16, where it knows the model."""
    if name == "plain":
        return replace(policy, sampler=None)
    if name == "vllm":
        from tokencredit.rollout.vllm import VllmSampler

        return replace(policy, sampler=VllmSampler(policy, memory=memory))
    from tokencredit.rollout.cuda_graph import FastSampler, why_not

    reason = why_not(policy, dtype)
    if name == "auto" and (reason is not None or policy.device.type != "cuda" or dtype != "bfloat16"):
        return replace(policy, sampler=None)
    if reason is not None:
        raise ConfigError(f"sampler is 'fast' but {reason}; use 'plain' or 'auto'")
    return replace(policy, sampler=FastSampler(policy))

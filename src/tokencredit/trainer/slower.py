"""Why a run on a GPU is slower than it could be: fast paths that were left to choose themselves and could not be taken."""

from tokencredit.config.train import TrainConfig
from tokencredit.forward.packed import why_not_packed
from tokencredit.policy.policy import Policy
from tokencredit.rollout.cuda_graph import why_not


def slower_in_words(config: TrainConfig, policy: Policy) -> list[str]:
    """Empty where nothing is lost, on a CPU, and where somebody asked for the plain path."""
    if policy.device.type != "cuda":
        return []
    drawn = why_not(policy, config.dtype) if config.sampler == "auto" and config.dtype == "bfloat16" else None
    passed = why_not_packed(policy.model) if config.passes == "auto" else None
    said = [] if drawn is None else [f"responses are drawn by the plain loop, not the fast sampler: {drawn}"]
    return said if passed is None else [*said, f"passes are padded, not packed: {passed}"]

"""Which of its ways a run took where it was left to choose, and why: kept in the run's record, fast or not.

Why a run on a GPU is slower than it could be: fast paths that were left to choose themselves and could not be taken.
"""

from typing import NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.forward.modes import ForwardMode, compile_unsupported_reason
from tokencredit.forward.packed import packing_unsupported_reason
from tokencredit.pipeline.credit import CreditPipeline
from tokencredit.policy.policy import Policy
from tokencredit.rollout.cuda_graph import why_not
from tokencredit.rollout.scoring import keeps_hidden_while_sampling

ASKED, FASTEST, NO_GPU = "asked for", "the fastest that can be taken here", "the model is not on a GPU"


class FastPath(NamedTuple):
    chosen: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """As kept in env.json."""
        return {"taken": self.chosen, "why": self.reason}


def explain_fast_paths(config: TrainConfig, policy: Policy, mode: ForwardMode, pipeline: CreditPipeline) -> dict[str, dict[str, str]]:
    """By the setting that decides them."""
    found = {
        "sampler": _sampler(config, policy),
        "passes": _passes(config, policy, mode),
        "compile": _compile(config, policy, mode),
        "features": _features(config, mode, pipeline),
    }
    return {setting: path.to_json() for setting, path in found.items()}


def _sampler(config: TrainConfig, policy: Policy) -> FastPath:
    taken = "plain" if policy.sampler is None else type(policy.sampler).__name__
    if config.sampler != "auto" or policy.sampler is not None:
        return FastPath(taken, FASTEST if config.sampler == "auto" else ASKED)
    if policy.device.type != "cuda":
        return FastPath(taken, NO_GPU)
    return FastPath(taken, (why_not(policy, config.dtype) if config.dtype == "bfloat16" else None) or f"dtype is {config.dtype!r}")


def _passes(config: TrainConfig, policy: Policy, mode: ForwardMode) -> FastPath:
    taken = "packed" if mode.packed else "padded"
    if config.passes != "auto" or mode.packed:
        return FastPath(taken, FASTEST if config.passes == "auto" else ASKED)
    return FastPath(taken, NO_GPU if policy.device.type != "cuda" else packing_unsupported_reason(policy.model) or "")


def _compile(config: TrainConfig, policy: Policy, mode: ForwardMode) -> FastPath:
    taken = "on" if mode.compiled else "off"
    if config.compile != "auto" or mode.compiled:
        return FastPath(taken, FASTEST if config.compile == "auto" else ASKED)
    return FastPath(taken, (compile_unsupported_reason(config, policy.model) or "") if mode.packed else "passes are padded")


def _features(config: TrainConfig, mode: ForwardMode, pipeline: CreditPipeline) -> FastPath:
    if not pipeline.keeps_hidden:
        return FastPath("none", "no stage reads hidden states")
    if keeps_hidden_while_sampling(config, pipeline):
        return FastPath("device", "as the sampler saw them")
    if not mode.packed:
        return FastPath("device", "padded passes leave them there")
    if config.features == "auto":
        return FastPath("device or host", f"on the device while they fit into {config.features_gib:g} GiB")
    return FastPath(config.features, ASKED)


def slow_path_warnings(config: TrainConfig, policy: Policy) -> list[str]:
    """Empty where nothing is lost, on a CPU, and where somebody asked for the plain path."""
    if policy.device.type != "cuda":
        return []
    drawn = why_not(policy, config.dtype) if config.sampler == "auto" and config.dtype == "bfloat16" else None
    passed = packing_unsupported_reason(policy.model) if config.passes == "auto" else None
    said = [] if drawn is None else [f"responses are drawn by the plain loop, not the fast sampler: {drawn}"]
    return said if passed is None else [*said, f"passes are padded, not packed: {passed}"]

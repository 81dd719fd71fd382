"""Fast paths of a run: the implementation chosen for each setting, the reason, and a warning where an automatic choice is slow."""

from typing import NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.forward.modes import ForwardMode, compile_unsupported_reason
from tokencredit.forward.packed import packing_unsupported_reason
from tokencredit.pipeline.credit import CreditPipeline
from tokencredit.policy.policy import Policy
from tokencredit.rollout.cuda_graph import unsupported_reason
from tokencredit.rollout.scoring import keeps_hidden_while_sampling

REQUESTED, FASTEST, NO_GPU = "requested", "the fastest available here", "the model is not on a GPU"


class FastPath(NamedTuple):
    chosen: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """In the format of env.json."""
        return {"taken": self.chosen, "why": self.reason}


def explain_fast_paths(config: TrainConfig, policy: Policy, mode: ForwardMode, pipeline: CreditPipeline) -> dict[str, dict[str, str]]:
    """The chosen implementation and its reason, by setting."""
    found = {
        "sampler": _sampler(config, policy),
        "passes": _passes(config, policy, mode),
        "compile": _compile(config, policy, mode),
        "features": _features(config, mode, pipeline),
    }
    return {setting: path.to_json() for setting, path in found.items()}


def _sampler(config: TrainConfig, policy: Policy) -> FastPath:
    chosen = "plain" if policy.sampler is None else type(policy.sampler).__name__
    if config.sampler != "auto" or policy.sampler is not None:
        return FastPath(chosen, FASTEST if config.sampler == "auto" else REQUESTED)
    if policy.device.type != "cuda":
        return FastPath(chosen, NO_GPU)
    return FastPath(
        chosen, (unsupported_reason(policy, config.dtype) if config.dtype == "bfloat16" else None) or f"dtype is {config.dtype!r}"
    )


def _passes(config: TrainConfig, policy: Policy, mode: ForwardMode) -> FastPath:
    chosen = "packed" if mode.packed else "padded"
    if config.passes != "auto" or mode.packed:
        return FastPath(chosen, FASTEST if config.passes == "auto" else REQUESTED)
    return FastPath(chosen, NO_GPU if policy.device.type != "cuda" else packing_unsupported_reason(policy.model) or "")


def _compile(config: TrainConfig, policy: Policy, mode: ForwardMode) -> FastPath:
    chosen = "on" if mode.compiled else "off"
    if config.compile != "auto" or mode.compiled:
        return FastPath(chosen, FASTEST if config.compile == "auto" else REQUESTED)
    return FastPath(chosen, (compile_unsupported_reason(config, policy.model) or "") if mode.packed else "passes are padded")


def _features(config: TrainConfig, mode: ForwardMode, pipeline: CreditPipeline) -> FastPath:
    if not pipeline.keeps_hidden:
        return FastPath("none", "no stage reads hidden states")
    if keeps_hidden_while_sampling(config, pipeline):
        return FastPath("device", "kept by the sampler")
    if not mode.packed:
        return FastPath("device", "padded passes keep them there")
    if config.features == "auto":
        return FastPath("device or host", f"on the device while they fit into {config.features_gib:g} GiB")
    return FastPath(config.features, REQUESTED)


def slow_path_warnings(config: TrainConfig, policy: Policy) -> list[str]:
    """Messages about fast paths that an automatic choice could not use; empty on a CPU and where the user set the slow path."""
    if policy.device.type != "cuda":
        return []
    no_fast_sampler = unsupported_reason(policy, config.dtype) if config.sampler == "auto" and config.dtype == "bfloat16" else None
    not_packed = packing_unsupported_reason(policy.model) if config.passes == "auto" else None
    messages = []
    if no_fast_sampler is not None:
        messages.append(f"the plain sampler is used instead of the fast sampler: {no_fast_sampler}")
    if not_packed is not None:
        messages.append(f"passes are padded instead of packed: {not_packed}")
    return messages

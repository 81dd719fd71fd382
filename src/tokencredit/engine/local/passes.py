"""How rows go through the model in scoring and update: padded to the longest, the plain twin, or packed and compiled."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from transformers import PreTrainedModel

from tokencredit.config import TrainConfig
from tokencredit.engine.local.compiled import compiling
from tokencredit.errors import ConfigError
from tokencredit.kernels.triton_here import why_no_triton
from tokencredit.probe.packed import why_not_packed
from tokencredit.probe.packed_evidence import FeatureRoom

WORTH_COMPILING = 50_000_000
"""Parameters. A smaller model waits for launches more than for memory, and a run of it is over soon."""


class Passes(NamedTuple):
    packed: bool = False
    compiled: bool = False

    def beginning(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Passes that are compiled must begin inside."""
        return compiling(model) if self.compiled else nullcontext()


PADDED = Passes()


def choose_passes(config: TrainConfig, model: PreTrainedModel) -> Passes:
    """By itself it packs on a GPU what can be packed: on a CPU the padded pass is what published numbers were made with."""
    on_gpu = model.device.type == "cuda"
    if config.passes == "padded" or (config.passes == "auto" and not on_gpu):
        if config.compile == "on":
            raise ConfigError("compile is 'on' but passes are padded on a CPU; set passes to 'packed' too")
        return PADDED
    reason = why_not_packed(model)
    if reason is not None and (config.passes == "packed" or config.compile == "on"):
        asked = "passes is 'packed'" if config.passes == "packed" else "compile is 'on'"
        raise ConfigError(f"{asked} but model {config.model!r} cannot be packed: {reason}; use 'auto'")
    by_itself = on_gpu and model.num_parameters() >= WORTH_COMPILING and why_no_triton() is None
    return Passes(reason is None, reason is None and (config.compile == "on" or (config.compile == "auto" and by_itself)))


def feature_room(config: TrainConfig) -> FeatureRoom:
    return FeatureRoom(config.features, int(config.features_gib * 2**30))

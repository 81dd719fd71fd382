"""How rows go through the model in scoring and update: padded to the longest, the plain twin, or packed and compiled."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from transformers import PreTrainedModel

from tokencredit.config.train import HEEDED_BY_PACKED, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.attention import WIDEST_FLASH_HEAD
from tokencredit.forward.compiled import compiling
from tokencredit.forward.packed import why_not_packed
from tokencredit.forward.packed_scoring import FeatureRoom
from tokencredit.kernels import why_no_triton

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
    asked = next((name for name, plain in HEEDED_BY_PACKED.items() if getattr(config, name) not in plain), None)
    if config.passes == "padded" or (config.passes == "auto" and model.device.type != "cuda"):
        if asked is not None:
            raise ConfigError(f"{asked} is {getattr(config, asked)!r}, which only packed passes heed; set passes to 'packed' too")
        return PADDED
    reason = why_not_packed(model)
    if reason is not None and (config.passes == "packed" or asked is not None):
        name = "passes" if asked is None else asked
        raise ConfigError(f"{name} is {getattr(config, name)!r} but model {config.model!r} cannot be packed: {reason}; use 'auto'")
    slow = why_not_compiled(config, model)
    if config.compile == "on" and slow is not None:
        raise ConfigError(f"compile is 'on' but {slow}; use 'auto'")
    return Passes(reason is None, reason is None and config.compile != "off" and slow is None)


def why_not_compiled(config: TrainConfig, model: PreTrainedModel) -> str | None:
    """Only flash attention takes rows of any layout; the padded buckets that stand in for it would be compiled for each anew."""
    if model.device.type != "cuda":
        return "the model is not on a GPU"
    if config.compile == "auto" and model.num_parameters() < WORTH_COMPILING:
        return f"it has {model.num_parameters():,} parameters, and below {WORTH_COMPILING:,} it is not worth it"
    if config.dtype != "bfloat16":
        return f"dtype is {config.dtype!r}, and flash attention takes bfloat16"
    text = model.config.get_text_config()
    wide = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if wide > WIDEST_FLASH_HEAD or wide % 8:
        return f"its heads have {wide} places, and flash attention takes multiples of 8 up to {WIDEST_FLASH_HEAD}"
    return why_no_triton()


def feature_room(config: TrainConfig) -> FeatureRoom:
    return FeatureRoom(config.features, int(config.features_gib * 2**30))

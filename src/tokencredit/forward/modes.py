"""Forward modes of scoring and update passes: padded or packed, compiled or not, with or without activation checkpointing.

Compiled and checkpointed layers replace `forward` only inside a context manager. Sampling, which extends a key-value cache, and
the microscope, which differentiates in forward mode, use the unchanged layers.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tokencredit.config.train import HEEDED_BY_PACKED, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.attention import WIDEST_FLASH_HEAD
from tokencredit.forward.packed import packing_unsupported_reason
from tokencredit.forward.packed_scoring import FeatureRoom
from tokencredit.kernels import triton_unavailable_reason

Forward = Callable[..., Any]


def layers_of(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextmanager
def wrap_layers(layers: list[GradientCheckpointingLayer], wrap: Callable[[GradientCheckpointingLayer], Forward]) -> Iterator[None]:
    """Inside the block each layer runs `wrap(layer)` as its forward; afterwards the previous forward is restored."""
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = wrap(layer)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            # Remove the instance attribute, or restore the one that was set before.
            del layer.forward
            if own is not None:
                layer.forward = own


@cache
def _compiled(kind: type[GradientCheckpointingLayer], backend: str) -> Callable[..., Any]:
    """One compilation for all layers of a class and for packed rows of any length; elementwise operations are fused."""
    return torch.compile(kind.forward, dynamic=True, backend=backend)


@contextmanager
def compiling(model: PreTrainedModel, backend: str = "inductor") -> Iterator[None]:
    """Passes that start inside the block run compiled layers."""

    def compiled(layer: GradientCheckpointingLayer) -> Forward:
        return partial(_compiled(type(layer), backend), layer)

    with wrap_layers(layers_of(model), compiled):
        yield


WORTH_COMPILING = 50_000_000
"""Parameters. A smaller model is bound by kernel launches rather than memory, and its runs are short."""


class ForwardMode(NamedTuple):
    packed: bool = False
    compiled: bool = False

    def context(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Compiled passes must start inside this context."""
        return compiling(model) if self.compiled else nullcontext()


PADDED = ForwardMode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """Settings of the forward passes of an update."""

    temperature: float
    """Of the sampler: log-probs are those of logits / temperature."""
    dtype: str = "float32"
    recompute: bool = False
    """Activation checkpointing."""
    mode: ForwardMode = PADDED
    max_tokens: int | None = None
    """Bounds a forward pass even where the plan of a resumed batch was cut for another mode."""

    @classmethod
    def from_config(cls, config: TrainConfig, mode: ForwardMode) -> "ForwardOptions":
        return cls(
            temperature=config.sampling.temperature,
            dtype=config.dtype,
            recompute=config.optimizer.gradient_checkpointing,
            mode=mode,
            max_tokens=config.optimizer.max_tokens,
        )


def choose_forward_mode(config: TrainConfig, model: PreTrainedModel) -> ForwardMode:
    """Packed on a GPU where the model supports it; padded on a CPU, where all recorded results were made with padded passes."""
    packed_only = next((name for name, plain in HEEDED_BY_PACKED.items() if getattr(config, name) not in plain), None)
    if config.passes == "padded" or (config.passes == "auto" and model.device.type != "cuda"):
        if packed_only is not None:
            raise ConfigError(
                f"{packed_only} is {getattr(config, packed_only)!r}, which only packed passes use; set passes to 'packed' too"
            )
        return PADDED
    reason = packing_unsupported_reason(model)
    if reason is not None and (config.passes == "packed" or packed_only is not None):
        name = "passes" if packed_only is None else packed_only
        raise ConfigError(f"{name} is {getattr(config, name)!r} but model {config.model!r} cannot be packed: {reason}; use 'auto'")
    slow = compile_unsupported_reason(config, model)
    if config.compile == "on" and slow is not None:
        raise ConfigError(f"compile is 'on' but {slow}; use 'auto'")
    return ForwardMode(reason is None, reason is None and config.compile != "off" and slow is None)


def compile_unsupported_reason(config: TrainConfig, model: PreTrainedModel) -> str | None:
    """Why packed layers cannot be compiled; None where they can.

    Flash attention takes rows of any layout; the padded buckets used without it would recompile for every layout.
    """
    if model.device.type != "cuda":
        return "the model is not on a GPU"
    if config.compile == "auto" and model.num_parameters() < WORTH_COMPILING:
        return f"it has {model.num_parameters():,} parameters, and below {WORTH_COMPILING:,} it is not worth it"
    if config.dtype != "bfloat16":
        return f"dtype is {config.dtype!r}, and flash attention takes bfloat16"
    text = model.config.get_text_config()
    wide = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if wide > WIDEST_FLASH_HEAD or wide % 8:
        return f"its head size is {wide}, and flash attention takes multiples of 8 up to {WIDEST_FLASH_HEAD}"
    return triton_unavailable_reason()


def feature_room(config: TrainConfig) -> FeatureRoom:
    return FeatureRoom(config.features, int(config.features_gib * 2**30))


def recomputable_layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    layers = layers_of(model)
    if not layers:
        raise ConfigError(f"optimizer.gradient_checkpointing is true but no layer of {type(model).__name__} supports it; set it to false")
    return layers


@contextmanager
def activation_checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Passes that start inside keep only the inputs of each layer; the backward pass recomputes the rest.

    transformers' own switch needs training mode, where some layers apply dropout. Wrapping each layer's forward keeps the model
    in eval mode, so no random number is drawn and the recomputed pass gives the same bits.
    """
    layers = recomputable_layers(model)
    with wrap_layers(layers, _with_checkpointing):
        for layer in layers:
            # Tells transformers not to use the KV cache: a layer run twice would append twice.
            layer.gradient_checkpointing = True
        try:
            yield
        finally:
            for layer in layers:
                # Uncovers the attribute of the class.
                del layer.gradient_checkpointing


def _with_checkpointing(layer: GradientCheckpointingLayer) -> Forward:
    return partial(_checkpointed, layer.forward)


def _checkpointed(forward: Forward, *given: Any, **named: Any) -> Any:
    return checkpoint(forward, *given, use_reentrant=False, preserve_rng_state=False, **named)

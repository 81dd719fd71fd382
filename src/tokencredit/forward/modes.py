"""How rows go through the model in scoring and update: padded to the longest, the plain twin, or packed and compiled.

The layers of a model, and a forward of another kind for them while a pass begins.

Layers compiled by torch for packed passes: what is computed between two matrix products becomes one kernel.

Only the passes of scoring and update run them. Sampling, which adds to a cache, and looks, which differentiate forward,
meet the plain layers.

Gradient checkpointing: a pass keeps only what goes into each layer, and computes the rest again on the way back.
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
def passing_through(layers: list[GradientCheckpointingLayer], wrap: Callable[[GradientCheckpointingLayer], Forward]) -> Iterator[None]:
    """Inside, each layer is passed through what `wrap(layer)` made; afterwards through what it was before, wrapped or not."""
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = wrap(layer)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            # What hid the forward of the class goes, or gives way to what hid it before.
            del layer.forward
            if own is not None:
                layer.forward = own


@cache
def _compiled(kind: type[GradientCheckpointingLayer], backend: str) -> Callable[..., Any]:
    """One compilation for all layers of a kind and for packed rows of any length."""
    return torch.compile(kind.forward, dynamic=True, backend=backend)


@contextmanager
def compiling(model: PreTrainedModel, backend: str = "inductor") -> Iterator[None]:
    """Passes begun inside run compiled layers."""

    def compiled(layer: GradientCheckpointingLayer) -> Forward:
        return partial(_compiled(type(layer), backend), layer)

    with passing_through(layers_of(model), compiled):
        yield


WORTH_COMPILING = 50_000_000
"""Parameters. A smaller model waits for launches more than for memory, and a run of it is over soon."""


class ForwardMode(NamedTuple):
    packed: bool = False
    compiled: bool = False

    def context(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Passes that are compiled must begin inside."""
        return compiling(model) if self.compiled else nullcontext()


PADDED = ForwardMode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """How rows go through the model in an update."""

    temperature: float
    """Of the sampler: log-probs are those of logits / temperature."""
    dtype: str = "float32"
    recompute: bool = False
    """Activation checkpointing."""
    mode: ForwardMode = PADDED
    max_tokens: int | None = None
    """Bounds a forward pass even where the plan was cut for another mode, before a resume."""

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
    """By itself it packs on a GPU what can be packed: on a CPU the padded pass is what published numbers were made with."""
    asked = next((name for name, plain in HEEDED_BY_PACKED.items() if getattr(config, name) not in plain), None)
    if config.passes == "padded" or (config.passes == "auto" and model.device.type != "cuda"):
        if asked is not None:
            raise ConfigError(f"{asked} is {getattr(config, asked)!r}, which only packed passes heed; set passes to 'packed' too")
        return PADDED
    reason = packing_unsupported_reason(model)
    if reason is not None and (config.passes == "packed" or asked is not None):
        name = "passes" if asked is None else asked
        raise ConfigError(f"{name} is {getattr(config, name)!r} but model {config.model!r} cannot be packed: {reason}; use 'auto'")
    slow = compile_unsupported_reason(config, model)
    if config.compile == "on" and slow is not None:
        raise ConfigError(f"compile is 'on' but {slow}; use 'auto'")
    return ForwardMode(reason is None, reason is None and config.compile != "off" and slow is None)


def compile_unsupported_reason(config: TrainConfig, model: PreTrainedModel) -> str | None:
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
    return triton_unavailable_reason()


def feature_room(config: TrainConfig) -> FeatureRoom:
    return FeatureRoom(config.features, int(config.features_gib * 2**30))


def recomputable_layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"optimizer.gradient_checkpointing is true but no layer of {type(model).__name__} can be computed again; set it to false"
        )
    return layers


@contextmanager
def activation_checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Passes begun inside are computed again when their gradient is taken.

    transformers' own switch works in training mode alone, where some layers drop out. So each layer's forward is wrapped here
    instead, and the model stays in eval mode: nothing is drawn, and the second pass gives the bits of the first.
    """
    layers = recomputable_layers(model)
    with passing_through(layers, _again):
        for layer in layers:
            # Says to whoever asks the model that its cache must stay unused: a layer passed twice would add to it twice.
            layer.gradient_checkpointing = True
        try:
            yield
        finally:
            for layer in layers:
                # It hid what the class has.
                del layer.gradient_checkpointing


def _again(layer: GradientCheckpointingLayer) -> Forward:
    return partial(_passed, layer.forward)


def _passed(forward: Forward, *given: Any, **named: Any) -> Any:
    return checkpoint(forward, *given, use_reentrant=False, preserve_rng_state=False, **named)

"""Gradient checkpointing: a pass keeps only what goes into each layer, and computes the rest again on the way back."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tokencredit.errors import ConfigError
from tokencredit.forward.layers import Forward, layers_of, passing_through


def recomputable_layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"optimizer.gradient_checkpointing is true but no layer of {type(model).__name__} can be computed again; set it to false"
        )
    return layers


@contextmanager
def recomputing(model: PreTrainedModel) -> Iterator[None]:
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

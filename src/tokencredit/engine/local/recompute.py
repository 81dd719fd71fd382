"""Gradient checkpointing: a pass keeps only what goes into each layer, and computes the rest again on the way back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tokencredit.errors import ConfigError


def recomputable_layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
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
    for layer in layers:
        layer.forward = _again(layer.forward)
        # Says to whoever asks the model that its cache must stay unused: a layer passed twice would add to it twice.
        layer.gradient_checkpointing = True
    try:
        yield
    finally:
        for layer in layers:
            # They hid what the class has.
            del layer.forward, layer.gradient_checkpointing


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def passed(*given: Any, **named: Any) -> Any:
        return checkpoint(forward, *given, use_reentrant=False, preserve_rng_state=False, **named)

    return passed

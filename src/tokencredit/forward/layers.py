"""The layers of a model, and a forward of another kind for them while a pass begins."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

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

"""Layers compiled by torch for packed passes: what is computed between two matrix products becomes one kernel.

Only the passes of scoring and update run them. Sampling, which adds to a cache, and looks, which differentiate forward,
meet the plain layers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tokencredit.forward.layers import Forward, layers_of, passing_through


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

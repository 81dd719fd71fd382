"""The matrices a decode step multiplies by: the model's own where they are of the type it computes in, one copy of them elsewhere."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.rollout.cuda_graph.supported_models import Anatomy, Layer, anatomy


class Weights:
    """Under autocast over float32 weights the matrices are copied to bfloat16: 2 bytes a parameter, refreshed in place once a call.

    bfloat16 weights are read where they are. Norms and embeddings are never copied: the model itself does not round them.
    """

    def __init__(self, model: PreTrainedModel, compute: torch.dtype) -> None:
        self.compute = compute
        self.own = anatomy(model)
        self._places = _places(model)
        self._copies = [matrix.to(compute) for matrix in _matrices(self.own)] if model.dtype != compute else []
        self.used = _with_matrices(self.own, iter(self._copies)) if self._copies else self.own

    def refresh(self) -> None:
        if self._copies:
            torch._foreach_copy_(self._copies, list(_matrices(self.own)))  # pyright: ignore[reportPrivateImportUsage]

    def still_of(self, model: PreTrainedModel) -> bool:
        """Whether the model's tensors are where they were when steps were captured."""
        return _places(model) == self._places


def _places(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]


def _matrices(body: Anatomy) -> Iterator[Tensor]:
    yield body.head
    for layer in body.layers:
        yield from (*layer.qkv, *(layer.biases or ()), layer.out, layer.gate, layer.up, layer.down)


def _with_matrices(body: Anatomy, copies: Iterator[Tensor]) -> Anatomy:
    """The same with other matrices, in the order of `_matrices`."""
    head = next(copies)
    return body._replace(head=head, layers=tuple(_layer_with(layer, copies) for layer in body.layers))


def _layer_with(layer: Layer, copies: Iterator[Tensor]) -> Layer:
    qkv = (next(copies), next(copies), next(copies))
    biases = None if layer.biases is None else (next(copies), next(copies), next(copies))
    return layer._replace(qkv=qkv, biases=biases, out=next(copies), gate=next(copies), up=next(copies), down=next(copies))

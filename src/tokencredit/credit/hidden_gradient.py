"""Hidden-gradient vectors from stored hidden states: one sweep over the head, its logits a block at a time, the vectors kept in float32."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.credit.features import DeviceFeatures, FeatureSource, FeatureStore, HostFeatures
from tokencredit.kernels.head import BUFFER_BYTES, HeadRule, head_hidden_gradient
from tokencredit.kernels.head.precision import wide, wide_scores

VECTOR_BYTES = 8 << 30
"""Vectors beyond this many bytes go to the host."""


def hidden_gradient_features(
    source: FeatureSource,
    tokens: Int[Tensor, " tok"],
    head: Float[Tensor, "vocab hid"],
    *,
    temperature: float,
    top_k: int,
    device_bytes: int = VECTOR_BYTES,
    buffer_bytes: int = BUFFER_BYTES,
) -> DeviceFeatures | HostFeatures:
    """W_y - sum over the K likeliest tokens of their renormalised probability x W_j, for every token of `source`.

    One product of 2 vocab hid FLOPs a token, whatever the refinements: the vectors are swept afterwards, not computed anew.
    With bf16 states, coefficients were off float64's by 8e-6 at most among 10^4 tokens, and by 1e-3 among 10^5.
    """
    store = None
    for number, features in source.chunks():
        run = source.runs[number]
        if store is None:
            store = FeatureStore(len(source), source.width, wide(features.dtype), features.device, device_bytes)
        head = head.to(features.dtype)
        rows = max(1, buffer_bytes // (2 * store.dtype.itemsize * max(len(head), min(top_k, len(head)) * source.width)))
        for start in range(run.start, run.stop, rows):
            part = slice(start, min(start + rows, run.stop))
            hidden = features[part.start - run.start : part.stop - run.start]
            store.put(part, _vectors(hidden, tokens[part], head, temperature, top_k))
    assert store is not None
    return store.source()


def _vectors(hidden: Tensor, tokens: Tensor, head: Tensor, temperature: float, top_k: int) -> Float[Tensor, "tok hid"]:
    if top_k >= len(head):
        return head_hidden_gradient(hidden, head, tokens, HeadRule(temperature))
    logit, index = (wide_scores(hidden, head) / temperature).topk(top_k, dim=-1)
    return head[tokens].to(logit.dtype) - torch.einsum("tk,tkh->th", logit.softmax(-1), head[index].to(logit.dtype))

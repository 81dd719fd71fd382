"""Hidden-gradient vectors from stored hidden states: one sweep over the head, its logits a block at a time, the vectors kept in float32."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.credit.features import DeviceFeatures, FeatureSource, FeatureStore, HostFeatures
from tokencredit.kernels.lm_head import BUFFER_BYTES, HeadRule, head_hidden_gradient
from tokencredit.kernels.lm_head.precision import wide, wide_scores

VECTOR_BYTES = 8 << 30
"""Vectors beyond this many bytes go to the host."""
SPARE = 8
"""Tokens beside the K likeliest whose logits are computed again: as many as rounding may have put on the wrong side of the K-th."""


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
    Which K they are is decided in float64: float32 takes the wrong one where the K-th logit and the next differ by a millionth,
    a few times among 10^5 tokens, and each time the token's coefficient moves by thousandths.
    """
    store = None
    for number, features in source.chunks():
        run = source.runs[number]
        if store is None:
            store = FeatureStore(len(source), source.width, wide(features.dtype), features.device, device_bytes)
        head = head.to(features.dtype)
        rows = _rows_at_once(len(head), source.width, top_k, buffer_bytes)
        for start in range(run.start, run.stop, rows):
            part = slice(start, min(start + rows, run.stop))
            hidden = features[part.start - run.start : part.stop - run.start]
            store.put(part, _vectors(hidden, tokens[part], head, temperature, top_k))
    assert store is not None
    return store.source()


def _rows_at_once(vocab: int, width: int, top_k: int, buffer_bytes: int) -> int:
    """Logits are held twice, in float32; rows of the head once, in float64, beside those they were copied from."""
    return max(1, buffer_bytes // max(8 * vocab, 12 * min(top_k + SPARE, vocab) * width))


def _vectors(hidden: Tensor, tokens: Tensor, head: Tensor, temperature: float, top_k: int) -> Float[Tensor, "tok hid"]:
    if top_k >= len(head):
        return head_hidden_gradient(hidden, head, tokens, HeadRule(temperature))
    near = wide_scores(hidden, head).topk(min(top_k + SPARE, len(head)), dim=-1).indices
    rows = head[near].double()
    logit = torch.einsum("th,tkh->tk", hidden.double(), rows) / temperature
    likeliest, at = logit.topk(top_k, dim=-1)
    share = torch.zeros_like(logit).scatter_(1, at, likeliest.softmax(-1))
    return (head[tokens].double() - torch.einsum("tk,tkh->th", share, rows)).to(wide(hidden.dtype))

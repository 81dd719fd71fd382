"""Causal attention over a packed row: each segment attends to its own keys. Flash attention where it runs, else padded buckets.

The model's own attention function is wrapped: a call that carries segments is handled here, every other call is passed through
unchanged. The model itself is not changed, so a layer that activation checkpointing recomputes later gives the same result.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tokencredit.forward.packing import Segments
from tokencredit.kernels import at_least_float32

SEGMENTS = "packed_segments"
"""The keyword that passes segments from a model's forward to its attention."""
_UNSUPPORTED = ("softcap", "sliding_window", "s_aux", "position_bias", "sinks")
"""Attention arguments that change the result and are not supported here."""
WIDEST_FLASH_HEAD = 256


_registered: dict[str, Callable[..., Any]] = {}


def register_packed_attention(implementation: str) -> None:
    """Wrap the attention of this name so that it uses segments where a call carries them; other calls are unchanged."""
    known = ALL_ATTENTION_FUNCTIONS[implementation]
    if known is not _registered.get(implementation):
        _registered[implementation] = _with_segments(known)
        AttentionInterface.register(implementation, _registered[implementation])


def _with_segments(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def attention(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *given: Any, **named: Any
    ) -> Any:
        segments = named.pop(SEGMENTS, None)
        if segments is None:
            return plain(module, query, key, value, attention_mask, *given, **named)
        return _of_module(module, query, key, value, segments, named), None

    return attention


def _of_module(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, segments: Segments, named: dict[str, Any]) -> Tensor:
    requested = [name for name in _UNSUPPORTED if named.get(name) is not None]
    if named.get("dropout"):
        requested.append("dropout")
    if not (getattr(module, "is_causal", True) if named.get("is_causal") is None else named["is_causal"]):
        requested.append("is_causal = False")
    if requested:
        raise ValueError(f"{type(module).__name__} needs {' and '.join(requested)}, which packed attention does not support")
    scale = named.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    return packed_attention(query, key, value, segments, scale=scale)[None]


def packed_attention(
    query: Float[Tensor, "packed head dim"],
    key: Float[Tensor, "packed kv dim"],
    value: Float[Tensor, "packed kv wide"],
    segments: Segments,
    *,
    scale: float,
) -> Float[Tensor, "packed head wide"]:
    """softmax(scale q k) v of each query over the keys of its segment up to itself; queries align with the last of their keys."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # Under autocast, rotary embeddings return float32; torch's own attention casts to half precision as well.
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in (query, key, value))
    if not runs_flash(query, key, value):
        return bucketed_attention(query, key, value, segments, scale=scale)  # pyright: ignore[reportCallIssue]
    shared = segments.shared or (None, None, None, None, 0)
    lengths = segments.query_starts, segments.key_starts, segments.longest_query, segments.longest_key
    return torch.ops.tokencredit.packed_flash(query, key, value, *lengths, scale, *shared)[0]


def runs_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    half = all(each.dtype == query.dtype for each in (key, value)) and query.dtype in (torch.bfloat16, torch.float16)
    wide = query.shape[-1]
    return query.is_cuda and half and value.shape[-1] == wide and wide % 8 == 0 and wide <= WIDEST_FLASH_HEAD


def _flash_forward(query: Tensor, key: Tensor, value: Tensor, *lengths: Any, scale: float) -> tuple[Tensor, Tensor]:
    found = torch.ops.aten._flash_attention_forward(query, key, value, *lengths, 0.0, True, False, scale=scale)
    return found[0], found[1]


def _flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *known: Any, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    # Two tensors of a random state that only dropout reads.
    unread = torch.zeros(2, dtype=torch.uint64, device=query.device), torch.empty(0, device=query.device)
    return torch.ops.aten._flash_attention_backward(gradient, query, key, value, *known, 0.0, True, *unread, scale=scale)


@torch.library.custom_op("tokencredit::packed_flash", mutates_args=())
def _packed_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    scale: float,
    source: Tensor | None,
    own: Tensor | None,
    copy: Tensor | None,
    copied: Tensor | None,
    prompt_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. One operation, so that the backward pass copies shared keys again instead of keeping the copies."""
    keys, values = (each if source is None else each.index_select(0, source) for each in (key, value))
    return _flash_forward(query, keys, values, query_starts, key_starts, longest_query, longest_key, scale=scale)


@_packed_flash.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *lengths_scale_shared: Any) -> tuple[Tensor, Tensor]:
    return _flash_forward(query, key, value, *lengths_scale_shared[:4], scale=lengths_scale_shared[4])


@torch.library.custom_op("tokencredit::packed_flash_backward", mutates_args=())
def _packed_flash_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    scale: float,
    source: Tensor | None,
    own: Tensor | None,
    copy: Tensor | None,
    copied: Tensor | None,
    prompt_tokens: int,
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = (each if source is None else each.index_select(0, source) for each in (key, value))
    known = output, log_sum, query_starts, key_starts, longest_query, longest_key
    to_query, to_keys, to_values = _flash_backward(gradient.contiguous(), query, keys, values, *known, scale=scale)
    if own is None or copy is None or copied is None:
        return to_query, to_keys, to_values
    to_key, to_value = (_sum_key_gradients(each, own, copy, copied, prompt_tokens) for each in (to_keys, to_values))
    return to_query, to_key, to_value


def _sum_key_gradients(gradient: Tensor, own: Tensor, copy: Tensor, copied: Tensor, prompt_tokens: int) -> Tensor:
    """The gradient of each packed token, summed in float32 over all keys made from it: its own, and the copies of a shared prompt."""
    total = gradient.index_select(0, own)
    prompts = at_least_float32(total[:prompt_tokens])
    total[:prompt_tokens] = prompts.index_add(0, copied, gradient.index_select(0, copy).to(prompts.dtype)).to(total.dtype)
    return total


@_packed_flash_backward.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, query_starts, key_starts, ctx.longest_query, ctx.longest_key, ctx.scale, *shared, ctx.prompt_tokens = inputs
    ctx.save_for_backward(query, key, value, *output, query_starts, key_starts, *shared)


def _backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, source, own, copy, copied = ctx.saved_tensors
    numbers = ctx.longest_query, ctx.longest_key, ctx.scale
    found = torch.ops.tokencredit.packed_flash_backward(gradient, *tensors, *numbers, source, own, copy, copied, ctx.prompt_tokens)
    return *found, *(None,) * 10


_packed_flash.register_autograd(_backward, setup_context=_keep)


class _Bucket(NamedTuple):
    """Segments of similar length, padded to the longest of them."""

    queries: Int[Tensor, "seg query"]
    keys: Int[Tensor, "seg key"]
    allowed: Bool[Tensor, "seg 1 query key"]
    real: Int[Tensor, " kept"]
    """Indices of the queries that are not padding, counted along segments."""


@torch.compiler.disable  # The number of buckets differs from batch to batch.
def bucketed_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, *, scale: float) -> Tensor:
    """The reference: torch's attention on padded segments, in one bucket where lengths round up to the same power of two."""
    buckets, order = _buckets(segments.query_lengths, segments.key_lengths, query.device)
    if segments.shared is not None:
        key, value = key[segments.shared.source], value[segments.shared.source]
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    found: list[Tensor] = []
    for bucket in buckets:
        padded = query[bucket.queries], key[bucket.keys], value[bucket.keys]
        output = scaled_dot_product_attention(*(each.transpose(1, 2) for each in padded), attn_mask=bucket.allowed, scale=scale)
        found.append(output.transpose(1, 2).flatten(0, 1)[bucket.real])
    return torch.cat(found)[order]


@lru_cache(maxsize=2)
def _buckets(
    query_lengths: tuple[int, ...], key_lengths: tuple[int, ...], device: torch.device
) -> tuple[list[_Bucket], Int[Tensor, " packed"]]:
    """The queries and keys of each bucket, and the index of each packed token in the concatenated buckets."""
    query_length, key_length = torch.tensor(query_lengths), torch.tensor(key_lengths)
    query_start, key_start = query_length.cumsum(0) - query_length, key_length.cumsum(0) - key_length
    size_class = torch.stack([query_length, key_length]).log2().ceil()
    buckets: list[_Bucket] = []
    tokens: list[Tensor] = []
    for kind in size_class.unique(dim=1).T:
        members = (size_class == kind[:, None]).all(0)
        queries, keys = query_length[members, None], key_length[members, None]
        query_at, key_at = torch.arange(int(queries.max())), torch.arange(int(keys.max()))
        real = query_at < queries
        # A padded query attends to padded keys; its output is dropped.
        allowed = key_at <= query_at[:, None] + (keys - queries)[:, :, None]
        query_rows = (query_start[members, None] + query_at).where(real, 0)
        key_rows = (key_start[members, None] + key_at).where(key_at < keys, 0)
        tokens.append(query_rows[real])
        buckets.append(_Bucket(*(each.to(device) for each in (query_rows, key_rows, allowed[:, None], real.flatten().nonzero()[:, 0]))))
    return buckets, torch.cat(tokens).argsort().to(device)

"""One forward pass over prompts and responses: logits with gradient, or log-prob, entropy and hidden states without.

A row is laid out as [left padding | prompt | response | right padding]. Causal attention never reads to the right, so only
left padding needs a mask, and rows with prompts of one length need none.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import Module, Parameter
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.kernels import at_least_float32, token_statistics
from tokencredit.types import Rollouts, TokenScores


def precision(model: PreTrainedModel, dtype: str) -> AbstractContextManager[Any]:
    """Autocast for bfloat16; the weights stay float32, so that rounding does not drop small updates."""
    return torch.autocast(model.device.type, dtype=torch.bfloat16) if dtype == "bfloat16" else nullcontext()


class PaddedPrompts(NamedTuple):
    ids: Int[Tensor, "seq tok"]
    attention: Int[Tensor, "seq tok"] | None
    """None without padding."""


def pad_prompts(prompts: Sequence[Sequence[int]], device: torch.device) -> PaddedPrompts:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    if all(len(prompt) == longest for prompt in prompts):
        return PaddedPrompts(ids, None)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return PaddedPrompts(ids, (torch.arange(longest, device=device) >= longest - lengths[:, None]).long())


def response_extent(mask: Bool[Tensor, "seq tok"]) -> Int[Tensor, " seq"]:
    """Length of each response up to its last sampled token."""
    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (columns * mask).amax(-1) if mask.shape[1] else torch.zeros(mask.shape[0], dtype=torch.long, device=mask.device)


def row_cost(rollouts: Rollouts) -> list[int]:
    """Tokens of each row in a pass, prompt included."""
    return [len(prompt) + extent for prompt, extent in zip(rollouts.prompts, response_extent(rollouts.mask).tolist(), strict=True)]


class ResponseLogits(NamedTuple):
    logits: Float[Tensor, "seq tok vocab"]
    """Logits that predict each response token."""
    hidden: Float[Tensor, "seq tok hid"]
    """Input of the LM head at these positions."""


def lm_head(model: PreTrainedModel) -> torch.nn.Module:
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(model).__name__} has no output embeddings; a causal LM with an LM head is needed")
    return head


def head_weight(model: PreTrainedModel) -> Float[Tensor, "vocab hid"]:
    return cast(Tensor, lm_head(model).weight).detach()


@contextmanager
def watching_head(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Collect the inputs of the LM head: final hidden states without keeping those of every layer."""
    seen: list[Tensor] = []
    handle = lm_head(model).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        handle.remove()


def response_logits(model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Int[Tensor, "seq tok"]) -> ResponseLogits:
    """The model's own forward (any logit scale or soft-cap included), with the LM head at response positions only.

    A prompt that many responses share runs once where that saves much; results then differ by rounding only.
    """
    if pays_to_share(prompts, tokens.shape[1]) and not uses_activation_checkpointing(model) and _has_copyable_cache(model):
        return _logits_with_shared_prompts(model, prompts, tokens)
    prompt_ids, prompt_attention = pad_prompts(prompts, tokens.device)
    width = tokens.shape[1]
    inputs: dict[str, Any] = {"input_ids": torch.cat([prompt_ids, tokens[:, :-1]], 1), "use_cache": False, "logits_to_keep": width}
    if prompt_attention is not None:
        attention = torch.cat([prompt_attention, torch.ones_like(tokens[:, :-1])], 1)
        inputs |= {"attention_mask": attention, "position_ids": (attention.cumsum(1) - 1).clamp(min=0)}
    with watching_head(model) as seen:
        logits = model(**inputs).logits
    return ResponseLogits(logits, seen[0])


SHARING_PAYS = 0.6
"""Prompts are shared where at most this fraction of the tokens remains; two short passes cost more than one long pass."""


def pays_to_share(prompts: Sequence[Sequence[int]], width: int) -> bool:
    longest, different = max(len(prompt) for prompt in prompts), len({tuple(prompt) for prompt in prompts})
    return different * longest + len(prompts) * width <= SHARING_PAYS * len(prompts) * (longest + width)


def uses_activation_checkpointing(model: PreTrainedModel) -> bool:
    """Reads the flag itself, because transformers renamed its property in 5.23."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def _has_copyable_cache(model: PreTrainedModel) -> bool:
    """Whether cached states can be copied row by row: keys and values can; recurrent and convolutional states cannot."""
    layers = DynamicCache(config=model.config).layers
    return bool(layers) and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def _logits_with_shared_prompts(model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Int[Tensor, "seq tok"]) -> ResponseLogits:
    """Run each distinct prompt once, then all responses on copies of its keys and values; gradients flow through the copies."""
    index_of: dict[tuple[int, ...], int] = {}
    of_row = torch.tensor([index_of.setdefault(tuple(prompt), len(index_of)) for prompt in prompts], device=tokens.device)
    ids, attention = pad_prompts(list(index_of), tokens.device)
    cache = DynamicCache(config=model.config)
    inputs: dict[str, Any] = {"input_ids": ids, "past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
    if attention is not None:
        inputs |= {"attention_mask": attention, "position_ids": (attention.cumsum(1) - 1).clamp(min=0)}
    with watching_head(model) as seen:
        first = model(**inputs).logits[:, -1:][of_row]
        if tokens.shape[1] == 1:
            return ResponseLogits(first, seen[0][:, -1:][of_row])
        cache.batch_select_indices(of_row)
        inputs = {"input_ids": tokens[:, :-1], "past_key_values": cache, "use_cache": True}
        if attention is not None:
            full = torch.cat([attention[of_row], torch.ones_like(tokens[:, :-1])], 1)
            inputs |= {"attention_mask": full, "position_ids": (full.cumsum(1) - 1)[:, ids.shape[1] :]}
        rest = model(**inputs).logits
    return ResponseLogits(torch.cat([first, rest], 1), torch.cat([seen[0][:, -1:][of_row], seen[1]], 1))


@torch.no_grad()
def score_rows(
    model: PreTrainedModel,
    rollouts: Rollouts,
    *,
    temperature: float,
    max_tokens: int,
    keep_hidden: bool = False,
    dtype: str = "float32",
) -> TokenScores:
    """Score every response token once, in micro-batches of at most `max_tokens`."""
    mask = rollouts.mask
    extent = response_extent(mask)
    cost = row_cost(rollouts)
    scored_dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    logp, entropy = (torch.zeros(mask.shape, dtype=scored_dtype, device=mask.device) for _ in range(2))
    hidden: Tensor | None = None
    for rows in cut_micro_batches(range(len(cost)), cost, max_tokens=max_tokens):
        index = torch.tensor(rows, device=mask.device)
        width = int(extent[index].max())
        if width == 0:
            continue
        tokens = rollouts.tokens[index, :width]
        with precision(model, dtype):
            logits, states = response_logits(model, [rollouts.prompts[row] for row in rows], tokens)
        statistics = token_statistics(logits, tokens, temperature=temperature)
        logp[index, :width] = statistics.logp
        entropy[index, :width] = statistics.entropy
        if keep_hidden:
            if hidden is None:
                hidden = torch.zeros(*mask.shape, states.shape[-1], dtype=at_least_float32(states).dtype, device=mask.device)
            hidden[index, :width] = at_least_float32(states)
    return TokenScores(logp.where(mask, 0.0), entropy.where(mask, 0.0), hidden)


def trainable_parameters(model: Module) -> dict[str, Parameter]:
    """By name in `named_parameters`: all weights, or adapters alone. Frozen parameters have no gradient and no optimizer state."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

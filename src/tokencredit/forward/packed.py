"""Log-probs and entropies of sampled tokens without padding and without full logits; `padded.py` is the reference.

A micro-batch runs through the model as one packed row (`packing.py`, `attention.py`), and the LM head is applied only at positions
that predict sampled tokens. `packing_unsupported_reason` says why a model cannot be packed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tokencredit.forward.attention import SEGMENTS, register_packed_attention
from tokencredit.forward.memory import is_out_of_memory
from tokencredit.forward.packing import PackedLayout, pack
from tokencredit.forward.padded import lm_head, response_logits
from tokencredit.kernels import at_least_float32
from tokencredit.kernels.lm_head import HeadRule, head_statistics


class PackedScores(NamedTuple):
    logp: Float[Tensor, "seq tok"]
    """Log-probs of sampled tokens, with gradient; 0 elsewhere."""
    entropy: Float[Tensor, "seq tok"]
    """Without gradient; 0 elsewhere."""
    hidden: Float[Tensor, "sampled hid"]
    """Input of the LM head for each sampled token, in the order of `layout.flat_index`; with gradient."""
    layout: PackedLayout


def packed_scores(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Int[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    temperature: float,
) -> PackedScores:
    """Pack and score rows; `mask` is True for sampled tokens. Tokens and mask on a device cost a synchronization."""
    return score_layout(model, pack(prompts, tokens, mask, model.device), temperature=temperature)


def score_layout(model: PreTrainedModel, layout: PackedLayout, *, temperature: float) -> PackedScores:
    """Score rows that are packed already: a layout can be used for many passes."""
    rule = head_rule(model, temperature)
    if rule is None:
        raise ValueError(f"{type(model).__name__} cannot be packed: {packing_unsupported_reason(model)}")
    weight = cast(Tensor, lm_head(model).weight)
    hidden = packed_hidden(model, layout)
    if len(layout.flat_index):
        logp, entropy, _ = head_statistics(hidden, weight, layout.targets, rule)
    else:
        logp = entropy = weight[:0].sum(-1)
    logp, entropy = (_scatter(each, layout) for each in (logp, entropy.detach()))
    return PackedScores(logp, entropy, hidden, layout)


def _scatter(values: Float[Tensor, " sampled"], layout: PackedLayout) -> Float[Tensor, "seq tok"]:
    rows, width = layout.shape
    return values.new_zeros(rows * width).index_copy(0, layout.flat_index, values).view(rows, width)


def packed_hidden(model: PreTrainedModel, layout: PackedLayout) -> Float[Tensor, "sampled hid"]:
    """Input of the LM head for each sampled token."""
    if not len(layout.flat_index):
        return cast(Tensor, lm_head(model).weight)[:0]
    register_packed_attention(_text_config(model)._attn_implementation)
    # transformers uses a 4-D mask as it is, so it builds none; packed attention ignores it.
    unread = torch.zeros(1, 1, 1, 1, device=layout.ids.device)
    inputs = {"input_ids": layout.ids, "position_ids": layout.positions, "attention_mask": unread, "use_cache": False}
    return model.base_model(**inputs, **{SEGMENTS: layout.segments})[0][0].index_select(0, layout.head_rows)


def _text_config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config()


class _Probe(NamedTuple):
    unsupported: str | None
    scale: float = 1.0
    softcap: float | None = None


_probed: "WeakKeyDictionary[PreTrainedModel, _Probe]" = WeakKeyDictionary()


def packing_unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why a packed pass would not reproduce this model; None where it does. Each model is probed once, on a few tokens."""
    return _attention_unsupported(model) or _probe(model).unsupported


def head_rule(model: PreTrainedModel, temperature: float) -> HeadRule | None:
    """How logits follow from hidden states and LM head; None where the model cannot be packed."""
    if packing_unsupported_reason(model) is not None:
        return None
    _, scale, softcap = _probe(model)
    return HeadRule(temperature=temperature, scale=scale, softcap=softcap)


def _probe(model: PreTrainedModel) -> _Probe:
    if model not in _probed:
        unsupported = _architecture_unsupported(model)
        _probed[model] = _Probe(unsupported) if unsupported else _run_probe(model)
    return _probed[model]


def _attention_unsupported(model: PreTrainedModel) -> str | None:
    """Reasons that may change between two passes, so they are checked every time."""
    implementation = _text_config(model)._attn_implementation
    if implementation == "eager" or implementation not in ALL_ATTENTION_FUNCTIONS:
        return f"its attention is {implementation!r}; it must be one that transformers' attention interface knows, as 'sdpa'"
    if model.training:
        return "it is in training mode, where dropout may be active"
    return None


def _architecture_unsupported(model: PreTrainedModel) -> str | None:
    config = _text_config(model)
    if config.is_encoder_decoder:
        return "it has an encoder"
    if not model._supports_attention_backend:
        return "its attention does not go through transformers' attention interface"
    other = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if other:
        return f"it has layers of type {', '.join(other)}; all must be full_attention"
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if windowed and not getattr(config, "layer_types", None):
        return f"its attention has a sliding window of {config.sliding_window}"
    head = lm_head(model)
    if type(head) is not torch.nn.Linear:
        return f"its head is a {type(head).__name__}, not a plain linear layer"
    if head.bias is not None:
        return "its head has a bias"
    return None


_PROBE_PROMPTS = ((5, 2, 7, 3, 6), (5, 2, 7, 3, 6), (4, 6, 2))
_PROBE_TOKENS = ((3, 6, 4, 2), (7, 3, 5, 0), (2, 5, 0, 0))
_PROBE_LENGTHS = (4, 3, 2)
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 5e-3}
"""Allowed difference between packed and padded results, by dtype, relative to the largest value; half precision: 5e-2."""


@torch.no_grad()
def _run_probe(model: PreTrainedModel) -> _Probe:
    """Compare a packed pass with the model's own forward, on a shared prompt, a single one and responses of unequal length."""
    config = _text_config(model)
    divided, softcap = getattr(config, "logits_scaling", None), getattr(config, "final_logit_softcapping", None)
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(divided or 1.0)
    vocabulary = int(config.vocab_size)
    prompts = [tuple(token % vocabulary for token in prompt) for prompt in _PROBE_PROMPTS]
    tokens = torch.tensor(_PROBE_TOKENS) % vocabulary
    mask = torch.arange(tokens.shape[1]) < torch.tensor(_PROBE_LENGTHS)[:, None]
    try:
        with torch.autocast(model.device.type, enabled=False):
            hidden = packed_hidden(model, pack(prompts, tokens, mask, model.device))
            logits = _logits(hidden, cast(Tensor, lm_head(model).weight), scale, softcap)
            own = [
                response_logits(model, [prompt], row[None, :long].to(model.device))
                for prompt, row, long in zip(prompts, tokens, _PROBE_LENGTHS, strict=True)
            ]
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as problem:
        if is_out_of_memory(problem):
            raise
        return _Probe(f"a packed pass fails: {problem}")
    if not _close(hidden, torch.cat([each.hidden[0] for each in own])):
        return _Probe("a packed pass gives other hidden states than its own forward")
    if not _close(logits, torch.cat([each.logits[0] for each in own])):
        return _Probe("its logits are not explained by hidden states, head, scale and soft-cap")
    return _Probe(None, scale, softcap)


def _logits(hidden: Tensor, weight: Tensor, scale: float, softcap: float | None) -> Tensor:
    logits = at_least_float32(hidden @ weight.T) * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _close(found: Tensor, known: Tensor) -> bool:
    return found.shape == known.shape and float((found - known).abs().max()) <= _TOLERANCE.get(known.dtype, 5e-2) * float(known.abs().max())

"""Log-probs and entropies of sampled tokens without padding and without logits; `forward.py` is the plain twin.

A micro-batch goes through the model as one packed row (`packing.py`, `packed_attention.py`), and the head is asked at the positions
that predict sampled tokens alone. Models of which this would not be true are named by `packing_unsupported_reason`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tokencredit.forward.attention import SEGMENTS, let_pack
from tokencredit.forward.memory import is_out_of_memory
from tokencredit.forward.packing import PackedLayout, pack
from tokencredit.forward.padded import lm_head, response_logits
from tokencredit.kernels import at_least_float32
from tokencredit.kernels.lm_head import HeadRule, head_statistics


class PackedScores(NamedTuple):
    logp: Float[Tensor, "seq tok"]
    """Of sampled tokens, with gradient; 0 elsewhere, as everything here."""
    entropy: Float[Tensor, "seq tok"]
    hidden: Float[Tensor, "sampled hid"]
    """What the head was given for each sampled token, in the order of `layout.place`; with gradient."""
    layout: PackedLayout


def packed_scores(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Int[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    *,
    temperature: float,
) -> PackedScores:
    """`mask` is True for sampled tokens. Tokens and mask of the host are read at once, those of a device only when it is done."""
    return score_layout(model, pack(prompts, tokens, mask, model.device), temperature=temperature)


def score_layout(model: PreTrainedModel, layout: PackedLayout, *, temperature: float) -> PackedScores:
    """The same for rows that are packed already: a layout can be used for many passes."""
    rule = head_rule(model, temperature)
    if rule is None:
        raise ValueError(f"{type(model).__name__} cannot be packed: {packing_unsupported_reason(model)}")
    weight = cast(Tensor, lm_head(model).weight)
    hidden = packed_hidden(model, layout)
    if len(layout.place):
        logp, entropy, _ = head_statistics(hidden, weight, layout.targets, rule)
    else:
        logp = entropy = weight[:0].sum(-1)
    logp, entropy = (_placed(each, layout) for each in (logp, entropy.detach()))
    return PackedScores(logp, entropy, hidden, layout)


def _placed(values: Float[Tensor, " sampled"], layout: PackedLayout) -> Float[Tensor, "seq tok"]:
    rows, width = layout.shape
    return values.new_zeros(rows * width).index_copy(0, layout.place, values).view(rows, width)


def packed_hidden(model: PreTrainedModel, layout: PackedLayout) -> Float[Tensor, "sampled hid"]:
    """What the LM head is to be given for each sampled token."""
    if not len(layout.place):
        return cast(Tensor, lm_head(model).weight)[:0]
    let_pack(_text_config(model)._attn_implementation)
    # A mask of four dimensions is taken as it is: none is made, and packed attention reads none.
    unread = torch.zeros(1, 1, 1, 1, device=layout.ids.device)
    inputs = {"input_ids": layout.ids, "position_ids": layout.positions, "attention_mask": unread, "use_cache": False}
    return model.base_model(**inputs, **{SEGMENTS: layout.segments})[0][0].index_select(0, layout.head_rows)


def _text_config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config()


class _Examined(NamedTuple):
    refused: str | None
    scale: float = 1.0
    softcap: float | None = None


_examined: "WeakKeyDictionary[PreTrainedModel, _Examined]" = WeakKeyDictionary()


def packing_unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why a packed pass would not give this model's numbers; None where it does. Each model is tried once, on a few tokens."""
    return _attention_refused(model) or _examine(model).refused


def head_rule(model: PreTrainedModel, temperature: float) -> HeadRule | None:
    """How logits follow from hidden states and head; None where the model is not packed."""
    if packing_unsupported_reason(model) is not None:
        return None
    _, scale, softcap = _examine(model)
    return HeadRule(temperature=temperature, scale=scale, softcap=softcap)


def _examine(model: PreTrainedModel) -> _Examined:
    if model not in _examined:
        refused = _family_refused(model)
        _examined[model] = _Examined(refused) if refused else _tried(model)
    return _examined[model]


def _attention_refused(model: PreTrainedModel) -> str | None:
    """What may change between two passes."""
    implementation = _text_config(model)._attn_implementation
    if implementation == "eager" or implementation not in ALL_ATTENTION_FUNCTIONS:
        return f"its attention is {implementation!r}; it must be one that transformers' attention interface knows, as 'sdpa'"
    if model.training:
        return "it is in training mode, in which it may drop out"
    return None


def _family_refused(model: PreTrainedModel) -> str | None:
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


_TRIAL_PROMPTS = ((5, 2, 7, 3, 6), (5, 2, 7, 3, 6), (4, 6, 2))
_TRIAL_TOKENS = ((3, 6, 4, 2), (7, 3, 5, 0), (2, 5, 0, 0))
_TRIAL_LENGTHS = (4, 3, 2)
_NEAR = {torch.float64: 1e-5, torch.float32: 5e-3}
"""How far two ways to compute hidden states and logits may lie apart, by dtype and relative to the largest; halves: 5e-2."""


@torch.no_grad()
def _tried(model: PreTrainedModel) -> _Examined:
    """A shared prompt, a lone one and responses of uneven length: packed and under the rule, and by the model's own forward."""
    config = _text_config(model)
    divided, softcap = getattr(config, "logits_scaling", None), getattr(config, "final_logit_softcapping", None)
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(divided or 1.0)
    vocabulary = int(config.vocab_size)
    prompts = [tuple(token % vocabulary for token in prompt) for prompt in _TRIAL_PROMPTS]
    tokens = torch.tensor(_TRIAL_TOKENS) % vocabulary
    mask = torch.arange(tokens.shape[1]) < torch.tensor(_TRIAL_LENGTHS)[:, None]
    try:
        with torch.autocast(model.device.type, enabled=False):
            hidden = packed_hidden(model, pack(prompts, tokens, mask, model.device))
            logits = _logits(hidden, cast(Tensor, lm_head(model).weight), scale, softcap)
            own = [
                response_logits(model, [prompt], row[None, :long].to(model.device))
                for prompt, row, long in zip(prompts, tokens, _TRIAL_LENGTHS, strict=True)
            ]
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as problem:
        if is_out_of_memory(problem):
            raise
        return _Examined(f"a packed pass fails: {problem}")
    if not _near(hidden, torch.cat([each.hidden[0] for each in own])):
        return _Examined("a packed pass gives other hidden states than its own forward")
    if not _near(logits, torch.cat([each.logits[0] for each in own])):
        return _Examined("its logits are not explained by hidden states, head, scale and soft-cap")
    return _Examined(None, scale, softcap)


def _logits(hidden: Tensor, weight: Tensor, scale: float, softcap: float | None) -> Tensor:
    logits = at_least_float32(hidden @ weight.T) * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _near(found: Tensor, known: Tensor) -> bool:
    return found.shape == known.shape and float((found - known).abs().max()) <= _NEAR.get(known.dtype, 5e-2) * float(known.abs().max())

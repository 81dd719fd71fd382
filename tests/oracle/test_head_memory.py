"""The chunked head holds its buffer, the tensors it was given and those it returns; never [tok, vocab]."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.head_cases import case
from tokencredit.kernels.lm_head import HeadRule, head_hidden_gradient, head_projection, head_statistics, head_weight_sum

SHAPE = TOK, HID, VOCAB = 192, 8, 1536
LOGITS = 4 * TOK * VOCAB


class Held(TorchDispatchMode):
    """Bytes of all storages made inside and still alive, at their most."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list = []
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.alive.append(weakref.ref(tensor))
        self.alive = [reference for reference in self.alive if reference() is not None]
        storages = [tensor.untyped_storage() for reference in self.alive if (tensor := reference()) is not None]
        self.most = max(self.most, sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))
        return result


def training(backend, dtype, buffer_bytes, rule):
    hidden, weight, tokens, share, _ = case(SHAPE, dtype)
    hidden.requires_grad_(), weight.requires_grad_()
    knobs = {} if backend == "plain" else {"buffer_bytes": buffer_bytes}
    with Held() as held:
        logp = head_statistics(hidden, weight, tokens, rule, backend=backend, **knobs).logp
        torch.autograd.grad((logp * share).sum(), (hidden, weight))
    return held.most


def crediting(backend, dtype, buffer_bytes, rule):
    hidden, weight, tokens, share, matrix = case(SHAPE, dtype)
    knobs = {"sloped": True, "backend": backend} | ({} if backend == "plain" else {"buffer_bytes": buffer_bytes})
    with Held() as held:
        head_weight_sum(hidden, weight, tokens, share, rule, **knobs)
        head_hidden_gradient(hidden, weight, tokens, rule, **knobs)
        head_projection(hidden, weight, tokens, matrix, rule, **knobs)
    return held.most


@pytest.mark.parametrize("work", [training, crediting])
@pytest.mark.parametrize("rule", [HeadRule(), HeadRule(0.7, 1.0, 3.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_held_follows_the_buffer(work, dtype: torch.dtype, rule: HeadRule) -> None:
    heads = 4 * (VOCAB + TOK) * HID
    small, large = (work("chunked", dtype, buffer_bytes, rule) for buffer_bytes in (LOGITS // 16, LOGITS // 4))
    assert small < LOGITS // 16 + 4 * heads
    assert LOGITS // 8 < large < LOGITS // 4 + 4 * heads, "a larger buffer is used, and no more than it"
    assert work("plain", dtype, 0, rule) > 2 * LOGITS, "the measure sees logits where there are some"

"""Compiled layers in packed passes: the same numbers, compiled once for rows of any length."""

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.packed_cases import CASES, dense_backward, dense_forward, llama
from tokencredit.forward import attention
from tokencredit.forward.modes import compiling
from tokencredit.forward.packed import packing_unsupported_reason, score_layout
from tokencredit.forward.packing import pack


def gradient_of(model: PreTrainedModel, logp: Tensor) -> list[Tensor]:
    weights = torch.randn(logp.shape, dtype=logp.dtype, generator=torch.Generator().manual_seed(3))
    return list(torch.autograd.grad(logp, list(model.parameters()), weights))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_layers_are_compiled_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    model = llama()
    assert packing_unsupported_reason(model) is None
    monkeypatch.setattr(attention, "runs_flash", lambda *_: True)
    monkeypatch.setattr(attention, "_flash_forward", dense_forward)
    monkeypatch.setattr(attention, "_flash_backward", dense_backward)
    counters.clear()
    for case in ("shared", "turns", "scattered"):
        layout = pack(*CASES[case], model.device)
        plain = score_layout(model, layout, temperature=1.0).logp
        with compiling(model, backend="aot_eager"):
            assert all("forward" in layer.__dict__ for layer in model.base_model.layers)
            found = score_layout(model, layout, temperature=1.0).logp
        assert not any("forward" in layer.__dict__ for layer in model.base_model.layers)
        torch.testing.assert_close(found, plain, atol=1e-12, rtol=0)
        for one, two in zip(*(gradient_of(model, logp) for logp in (found, plain)), strict=True):
            torch.testing.assert_close(one, two, atol=1e-12 * max(1.0, float(two.abs().max())), rtol=0)
    assert counters["stats"]["unique_graphs"] == 1

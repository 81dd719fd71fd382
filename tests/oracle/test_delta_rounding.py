"""Rounding that float32 and half precision would bring into the exact proxies, where DelTA must not let it."""

import pytest
import torch
from torch import Tensor

from tokencredit.credit import delta_coefficients
from tokencredit.credit.delta.vectors import hidden_gradient_features, hidden_gradient_vectors
from tokencredit.credit.features import DeviceFeatures
from tokencredit.kernels.lm_head import chunked

ROWS, COLUMNS, WIDTH, VOCAB = 24, 16, 12, 512


def nearly_tied(below: int, above: int) -> tuple[Tensor, Tensor]:
    """Two states for which some rows of the head are as likely in float32, and for which other ones are likelier in float64."""
    states = torch.tensor([[16.0, 2.0**-12, 0.0, 0.0], [16.0, -(2.0**-12), 0.0, 0.0]], dtype=torch.bfloat16)
    head = torch.zeros(40, 4)
    head[:, 0] = 10 - torch.arange(40) / 8
    head[:below] = torch.tensor([16.0, -(2.0**-12), 1.0, 0.0])
    head[below : below + above] = torch.tensor([16.0, 2.0**-12, 0.0, 1.0])
    head = head.roll(11, 0).bfloat16()
    logits = states.float() @ head.float().T
    assert (logits == 256).sum() == 2 * (below + above), "float32 tells them apart"
    return states, head


@pytest.mark.parametrize(("below", "above"), [(1, 1), (3, 3), (4, 2)])
def test_the_likeliest_tokens_are_those_of_float64(below: int, above: int) -> None:
    states, head = nearly_tied(below, above)
    tokens, top_k = torch.tensor([3, 30]), min(below, above)
    source = hidden_gradient_features(DeviceFeatures(states), tokens, head, temperature=0.7, top_k=top_k)
    wanted = hidden_gradient_vectors(states.double(), tokens, head.double(), temperature=0.7, top_k=top_k).vectors
    assert source.features.dtype == torch.float32
    assert (source.features - wanted).abs().max() < 1e-5
    assert (wanted[0] - wanted[1])[2:].abs().min() > 0.9, "the other choice would be seen"


@pytest.mark.parametrize("proxy", ["head", "hidden-gradient"])
def test_errors_in_bfloat16_do_not_move_coefficients(monkeypatch, proxy: str) -> None:
    """Few tokens and many words: most are alone in their row of a centroid, where nothing averages a rounding out."""
    draw = torch.Generator().manual_seed(3)
    hidden = torch.randn(ROWS, COLUMNS, WIDTH, generator=draw).bfloat16()
    head = torch.randn(VOCAB, WIDTH, generator=draw).bfloat16()
    tokens = torch.randint(VOCAB, (ROWS, COLUMNS), generator=draw)
    advantage, mask = torch.randn(ROWS, generator=draw), torch.ones(ROWS, COLUMNS, dtype=torch.bool)
    logp = (hidden.double() @ head.double().T).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    knobs = {"proxy": proxy, "tokens": tokens, "top_k": VOCAB}
    wanted = delta_coefficients(logp, hidden.double(), advantage, mask, head=head.double(), **knobs)
    monkeypatch.setattr(chunked, "error_dtype", lambda _: torch.bfloat16)
    found = delta_coefficients(logp, hidden, advantage, mask, head=head, **knobs)
    assert (found - wanted).abs().max() < 2e-5

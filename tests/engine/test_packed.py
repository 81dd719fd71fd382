"""Log-probs, entropies and gradients of a packed pass against the padded twin's, in float64."""

from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.packed_cases import CASES, MODELS, Rows, llama
from tiny import made_up_rollouts
from tokencredit.config.train import Lora
from tokencredit.forward import packing
from tokencredit.forward import padded as forward
from tokencredit.forward.modes import activation_checkpointing, recomputable_layers
from tokencredit.forward.packed import packed_scores, packing_unsupported_reason, score_layout
from tokencredit.forward.packing import pack
from tokencredit.forward.padded import response_logits, trainable_parameters
from tokencredit.kernels import token_statistics
from tokencredit.policy.lora import add_adapters
from tokencredit.policy.policy import load_policy

TEMPERATURE = 0.7


class Found(NamedTuple):
    logp: Tensor
    entropy: Tensor
    gradient: list[Tensor]


def gradient_of(model: PreTrainedModel, logp: Tensor) -> list[Tensor]:
    weights = torch.randn(logp.shape, dtype=logp.dtype, generator=torch.Generator().manual_seed(3))
    model.zero_grad()
    logp.backward(weights)
    return [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in trainable_parameters(model).values()]


def padded(model: PreTrainedModel, rows: Rows) -> Found:
    """Without sharing, so that nothing but padding is left to differ."""
    known = token_statistics(response_logits(model, rows.prompts, rows.tokens).logits, rows.tokens, temperature=TEMPERATURE)
    logp, entropy = (each.where(rows.mask, 0.0) for each in known)
    return Found(logp.detach(), entropy.detach(), gradient_of(model, logp))


def packed(model: PreTrainedModel, rows: Rows, *, recompute: bool = False) -> Found:
    with activation_checkpointing(model) if recompute else nullcontext():
        scores = packed_scores(model, *rows, temperature=TEMPERATURE)
    return Found(scores.logp.detach(), scores.entropy, gradient_of(model, scores.logp))


def assert_same(found: Found, known: Found, atol: float = 1e-9) -> None:
    torch.testing.assert_close(found.logp, known.logp, atol=atol, rtol=0)
    torch.testing.assert_close(found.entropy, known.entropy, atol=atol, rtol=0)
    assert sum(float(each.abs().sum()) for each in known.gradient) > 0
    for one, two in zip(found.gradient, known.gradient, strict=True):
        torch.testing.assert_close(one, two, atol=atol * max(1.0, float(two.abs().max())), rtol=0)


@pytest.fixture(autouse=True)
def _twin_reads_every_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "SHARING_PAYS", 0.0)


@pytest.mark.parametrize("pays", [1.0, 0.0], ids=["sharing", "apart"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_pass_equals_the_padded_twin(monkeypatch: pytest.MonkeyPatch, name: str, case: str, pays: float) -> None:
    monkeypatch.setattr(packing, "SHARING_PAYS", pays)
    model, rows = MODELS[name](), CASES[case]
    assert_same(packed(model, rows), padded(model, rows))


@pytest.mark.parametrize("pays", [1.0, 0.0], ids=["sharing", "apart"])
def test_layers_computed_again_on_the_way_back_are_packed_again(monkeypatch: pytest.MonkeyPatch, pays: float) -> None:
    monkeypatch.setattr(packing, "SHARING_PAYS", pays)
    model, rows = llama(), CASES["shared"]
    assert packing_unsupported_reason(model) is None
    calls: list[bool] = []
    inside = recomputable_layers(model)[0].self_attn.q_proj
    inside.register_forward_hook(lambda *_: calls.append(True))
    again = packed(model, rows, recompute=True)
    assert len(calls) == 2
    plain = packed(model, rows)
    assert all(torch.equal(one, two) for one, two in zip(again.gradient, plain.gradient, strict=True))
    assert_same(again, padded(model, rows))


def test_a_shipped_base_scores_its_tokens_alike() -> None:
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")
    drawn = made_up_rollouts()
    rows = Rows(list(drawn.prompts), drawn.tokens, drawn.mask)
    assert packing_unsupported_reason(policy.model) is None
    assert_same(packed(policy.model, rows), padded(policy.model, rows), atol=2e-5)


def test_adapters_have_the_gradient_of_the_padded_twin() -> None:
    model, rows = llama(), CASES["shared"]
    add_adapters(model, Lora(rank=2), seed=0)
    for parameter in trainable_parameters(model).values():
        parameter.data = torch.randn_like(parameter, dtype=torch.float64) / 4
    assert_same(packed(model, rows), padded(model, rows))


def test_rows_in_another_order_or_cut_give_the_same() -> None:
    model, (prompts, tokens, mask) = llama(), CASES["shared"]
    whole = packed_scores(model, prompts, tokens, mask, temperature=TEMPERATURE).logp
    for rows in ([5, 3, 1, 0, 4, 2], [0, 2], [1], [4, 5]):
        part = packed_scores(model, [prompts[row] for row in rows], tokens[rows], mask[rows], temperature=TEMPERATURE).logp
        torch.testing.assert_close(part, whole[rows], atol=1e-12, rtol=0)


def test_hidden_states_come_in_the_order_of_their_tokens_and_a_layout_can_be_used_again() -> None:
    model, rows = llama(), CASES["turns"]
    layout = pack(*rows, model.device)
    first, second = (score_layout(model, layout, temperature=TEMPERATURE) for _ in range(2))
    assert torch.equal(first.logp, second.logp)
    known = response_logits(model, rows.prompts, rows.tokens).hidden
    torch.testing.assert_close(first.hidden, known[rows.mask], atol=1e-12, rtol=0)


def test_rows_without_a_sampled_token_give_zeros_and_need_no_pass() -> None:
    model = llama()
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert packing_unsupported_reason(model) is None
    model.model.register_forward_hook(lambda *_: pytest.fail("the model was passed"))
    scores = packed_scores(model, [(3, 4), (5,)], torch.ones(2, 3, dtype=torch.long), nothing, temperature=1.0)
    assert torch.equal(scores.logp, torch.zeros(2, 3, dtype=torch.float64))
    assert scores.hidden.shape == (0, 16)
    assert all(not bool(each.any()) for each in gradient_of(model, scores.logp))


def test_no_mask_over_all_pairs_is_made() -> None:
    model, sizes = llama(), []
    assert packing_unsupported_reason(model) is None
    model.model.layers[0].register_forward_pre_hook(lambda _, __, named: sizes.append(named["attention_mask"].numel()), with_kwargs=True)
    packed_scores(model, *CASES["shared"], temperature=1.0)
    assert sizes == [1]


def test_after_a_failed_pass_the_model_is_as_it_was() -> None:
    model, rows = llama(), CASES["shared"]
    before = response_logits(model, rows.prompts, rows.tokens).logits
    implementation = model.config._attn_implementation
    assert packing_unsupported_reason(model) is None

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    handle = model.model.layers[1].register_forward_hook(fails)
    with pytest.raises(ZeroDivisionError):
        packed_scores(model, *rows, temperature=1.0)
    handle.remove()
    assert model.config._attn_implementation == implementation
    assert torch.equal(response_logits(model, rows.prompts, rows.tokens).logits, before)

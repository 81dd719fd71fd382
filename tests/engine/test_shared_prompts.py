"""A prompt that many responses share is read once; the numbers and the gradient stay what they were."""

import pytest
import torch

from tiny import tiny_policy
from tokencredit.forward import padded
from tokencredit.forward.padded import ResponseLogits, pays_to_share, response_logits

PROMPTS = [(3, 4, 5, 6, 7, 8, 9, 10, 11)] * 4 + [(5, 6, 7, 9)] * 4
EVEN = [(3, 4, 5, 6, 7, 8, 9, 10, 11)] * 4 + [(9, 6, 7, 9, 3, 3, 3, 4, 5)] * 4


def both_ways(monkeypatch: pytest.MonkeyPatch, prompts: list[tuple[int, ...]], width: int) -> tuple[ResponseLogits, ResponseLogits, object]:
    policy = tiny_policy()
    tokens = torch.randint(3, 20, (len(prompts), width), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(padded, "SHARING_PAYS", 1.0)
    shared = response_logits(policy.model, prompts, tokens)
    monkeypatch.setattr(padded, "SHARING_PAYS", 0.0)
    return shared, response_logits(policy.model, prompts, tokens), policy.model


@pytest.mark.parametrize("prompts", [PROMPTS, EVEN], ids=["padded", "even"])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_shared_prompts_give_the_same_logits_states_and_gradient(
    monkeypatch: pytest.MonkeyPatch, prompts: list[tuple[int, ...]], width: int
) -> None:
    shared, plain, model = both_ways(monkeypatch, prompts, width)
    assert torch.allclose(shared.logits, plain.logits, atol=1e-10, rtol=0)
    assert torch.allclose(shared.hidden, plain.hidden, atol=1e-10, rtol=0)
    weights = torch.randn(plain.logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parameters = list(model.parameters())  # pyright: ignore[reportAttributeAccessIssue]
    one, two = (torch.autograd.grad((logits * weights).sum(), parameters) for logits in (shared.logits, plain.logits))
    for first, second in zip(one, two, strict=True):
        # The norms of this model compute in float32 whatever its weights are.
        assert float((first - second).abs().max()) <= 1e-6 * float(second.abs().max())


def test_prompts_are_shared_only_where_that_saves_much() -> None:
    assert pays_to_share([(1,) * 30] * 16, 8)
    assert not pays_to_share([(1,) * 10] * 8, 26)
    assert not pays_to_share([(number,) * 30 for number in range(16)], 8)


def test_the_shared_pass_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparison above would compare a pass with itself."""
    policy = tiny_policy()
    lengths: list[tuple[int, ...]] = []
    policy.model.get_input_embeddings().register_forward_hook(lambda _, given, __: lengths.append(tuple(given[0].shape)))
    tokens = torch.ones(6, 3, dtype=torch.long)
    response_logits(policy.model, [(3,) * 20] * 6, tokens)
    assert lengths == [(1, 20), (6, 2)]
    lengths.clear()
    # transformers 5.23 gave it another name.
    renamed = hasattr(policy.model, "activation_checkpointing_enable")
    getattr(policy.model, "activation_checkpointing_enable" if renamed else "gradient_checkpointing_enable")()
    response_logits(policy.model, [(3,) * 20] * 6, tokens)
    assert lengths == [(6, 22)]


def test_a_model_whose_state_cannot_be_copied_reads_every_prompt() -> None:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        layer_types=["conv", "full_attention"],
    )  # fmt: skip
    model = Lfm2ForCausalLM(config).eval()
    tokens = torch.ones(6, 3, dtype=torch.long)
    found = response_logits(model, [(3,) * 20] * 6, tokens).logits
    assert torch.allclose(found, model(torch.tensor([[3] * 20 + [1, 1, 1]] * 6)).logits[:, 19:22], atol=1e-5)

"""First-order effect of an update: equal to autograd's inner products, to differences, and to what a small step really does."""

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, PreTrainedModel, Qwen3Config

from tiny import made_up_rollouts, tiny_policy
from tokencredit.forward import first_order as probe
from tokencredit.forward.divergence import movement
from tokencredit.forward.first_order import plain_attention, predicted_change
from tokencredit.forward.padded import response_logits, score_rows
from tokencredit.kernels import token_logp
from tokencredit.types import Rollouts

LIMITS = {"temperature": 0.7, "max_tokens": 40}


def random_direction(model: PreTrainedModel, seed: int, size: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: size * torch.randn(value.shape, generator=generator, dtype=value.dtype) for name, value in model.named_parameters()}


def inner_products(model: PreTrainedModel, rollouts: Rollouts, direction: Mapping[str, Tensor]) -> Tensor:
    """<grad log pi(o_t), direction>, one backward pass per token."""
    found = torch.zeros(rollouts.mask.shape, dtype=torch.float64)
    for row, position in rollouts.mask.nonzero().tolist():
        tokens = rollouts.tokens[row : row + 1, : position + 1]
        logp = token_logp(response_logits(model, [rollouts.prompts[row]], tokens).logits, tokens, temperature=LIMITS["temperature"])
        gradients = torch.autograd.grad(logp[0, position], list(model.parameters()))
        parts = zip(gradients, direction.values(), strict=True)
        found[row, position] = sum(float((gradient * part).sum()) for gradient, part in parts)
    return found


def moved(model: PreTrainedModel, direction: Mapping[str, Tensor], size: float) -> None:
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += size * direction[name]


def test_jvp_is_the_inner_product_with_every_token_s_gradient() -> None:
    policy, rollouts = tiny_policy(), made_up_rollouts(groups=2)
    directions = {name: random_direction(policy.model, seed) for seed, name in enumerate("ab")}
    found = predicted_change(policy.model, rollouts, directions, **LIMITS)
    assert found.method == "jvp"
    for name, direction in directions.items():
        expected = inner_products(policy.model, rollouts, direction)
        # Llama takes its norms in float32, whatever the weights are.
        assert torch.allclose(found.change[name], expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
        assert not found.change[name][~rollouts.mask].any()


def test_differences_agree_with_jvp() -> None:
    policy, rollouts = tiny_policy(), made_up_rollouts()
    directions = {"one": random_direction(policy.model, 3, size=1e-4), "none": random_direction(policy.model, 3, size=0.0)}
    exact, stepped = (
        predicted_change(policy.model, rollouts, directions, **LIMITS, method=method).change for method in ("jvp", "difference")
    )
    gap = (exact["one"] - stepped["one"]).abs().max() / exact["one"].abs().max()
    assert 0 < float(gap) < 2e-3
    assert not stepped["none"].any()
    assert not exact["none"].any()


def test_an_operation_without_forward_mode_falls_back_to_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rollouts = tiny_policy(), made_up_rollouts()
    directions = {"one": random_direction(policy.model, 3)}
    exact = predicted_change(policy.model, rollouts, directions, **LIMITS).change["one"]

    def refuses(*_: object) -> Tensor:
        raise NotImplementedError("Trying to use forward AD with _fused_attention that does not support it")

    monkeypatch.setattr(probe, "_forward_mode", refuses)
    found = predicted_change(policy.model, rollouts, directions, **LIMITS)
    assert found.method == "difference"
    assert torch.allclose(found.change["one"], exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))


def test_another_error_is_not_taken_for_a_missing_forward_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(probe, "_forward_mode", broken)
    policy = tiny_policy()
    with pytest.raises(RuntimeError, match="out of memory"):
        predicted_change(policy.model, made_up_rollouts(), {"one": random_direction(policy.model, 3)}, **LIMITS)


def test_a_direction_must_name_every_parameter() -> None:
    policy = tiny_policy()
    direction = random_direction(policy.model, 0)
    del direction["lm_head.weight"]
    with pytest.raises(ValueError, match=r"direction 'short' has \d+ parameters but the model \d+"):
        predicted_change(policy.model, made_up_rollouts(), {"short": direction}, **LIMITS)


def test_attention_is_given_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused attention that torch does not know is replaced for the while; ours are left as they are."""
    model = tiny_policy().model
    asked: list[str] = []
    monkeypatch.setattr(model, "set_attn_implementation", asked.append)
    for name, expected in (("sdpa", []), ("eager", []), ("flash_attention_2", ["sdpa", "flash_attention_2"])):
        monkeypatch.setattr(model.config, "_attn_implementation_internal", name)
        asked.clear()
        with pytest.raises(KeyError), plain_attention(model):
            raise KeyError
        assert asked == expected


SMALL = {"vocab_size": 24, "max_position_embeddings": 64}
ARCHITECTURES = {
    "gpt2": GPT2Config(**SMALL, n_embd=16, n_layer=2, n_head=2),
    "qwen3": Qwen3Config(
        **SMALL, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8
    ),
    "gemma2": Gemma2Config(
        **SMALL, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_small_real_step_is_predicted_token_by_token_in_float32(name: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[name]).eval()
    rollouts = made_up_rollouts()
    direction = random_direction(model, 1, size=2e-4)
    predicted = predicted_change(model, rollouts, {"step": direction}, **LIMITS)
    before = score_rows(model, rollouts, **LIMITS).logp
    moved(model, direction, 1.0)
    measured = score_rows(model, rollouts, **LIMITS).logp - before
    inside = rollouts.mask
    assert predicted.method == "jvp"
    assert float(torch.corrcoef(torch.stack([predicted.change["step"][inside], measured[inside]]))[0, 1]) > 0.99


def test_movement_compares_whole_distributions() -> None:
    one, two, rollouts = tiny_policy(seed=0), tiny_policy(seed=1), made_up_rollouts()
    found = movement(one.model, two.model, rollouts, **LIMITS)
    for row, position in rollouts.mask.nonzero().tolist():
        tokens = rollouts.tokens[row : row + 1, : position + 1]
        with torch.no_grad():
            p, q = (
                (response_logits(policy.model, [rollouts.prompts[row]], tokens).logits[0, -1] / LIMITS["temperature"]).softmax(-1).tolist()
                for policy in (one, two)
            )
        token = int(tokens[0, -1])
        assert float(found.before.logp[row, position]) == pytest.approx(math.log(p[token]), abs=1e-9)
        assert float(found.after.logp[row, position]) == pytest.approx(math.log(q[token]), abs=1e-9)
        assert float(found.kl[row, position]) == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)), abs=1e-9)
        assert float(found.before.entropy[row, position]) == pytest.approx(-sum(a * math.log(a) for a in p), abs=1e-9)
        assert float(found.after.entropy[row, position]) == pytest.approx(-sum(b * math.log(b) for b in q), abs=1e-9)
    hidden = score_rows(one.model, rollouts, keep_hidden=True, **LIMITS).hidden
    assert hidden is not None
    assert found.before.hidden is not None
    assert torch.allclose(found.before.hidden[rollouts.mask], hidden[rollouts.mask], atol=1e-12)
    assert not found.kl[~rollouts.mask].any()


def test_a_token_is_scored_to_the_bit_as_it_is_elsewhere() -> None:
    """Or unchanged weights would seem to have moved it."""
    policy, rollouts = tiny_policy(torch.float32), made_up_rollouts()
    found = movement(policy.model, policy.model, rollouts, **LIMITS)
    scored = score_rows(policy.model, rollouts, keep_hidden=True, **LIMITS)
    assert torch.equal(found.before.logp, scored.logp)
    assert torch.equal(found.before.entropy, scored.entropy)


def test_nothing_moved_is_no_divergence() -> None:
    policy, rollouts = tiny_policy(torch.float32), made_up_rollouts()
    found = movement(policy.model, policy.model, rollouts, **LIMITS)
    assert not found.kl.any()
    assert torch.equal(found.before.logp, found.after.logp)

"""DelTA against its nested-loop twin, every proxy, scope and published ablation; and the stage form with its temperature modes."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.delta_oracle import Knobs, Rollouts, Twin, delta_oracle
from tokencredit.credit import CreditInputs, delta_coefficients
from tokencredit.credit.delta import delta_credit
from tokencredit.credit.delta.accumulators import Temperature

VOCAB, WIDTH, COLUMNS = 7, 4, 5
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
PROXIES = ("row", "hidden-gradient", "head")

VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "hard assignment": {"assignment": "hard"},
    "raw map": {"coefficient_map": "raw"},
    "symmetric map": {"coefficient_map": "symmetric"},
    "symmetric map of hard assignments": {"coefficient_map": "symmetric", "assignment": "hard"},
    "symmetric map at a fixed temperature": {"coefficient_map": "symmetric", "fixed_temperature": Temperature(1.0, 2.0, 0.5)},
    "own side only": {"score": "own-side"},
    "own side only, raw": {"score": "own-side", "coefficient_map": "raw"},
    "not normalised": {"normalize": False},
    "wide range": {"lam_min": 0.0, "lam_max": 2.0},
    "doubled temperature": {"gamma_scale": 2.0},
    "fixed temperatures": {"fixed_temperature": Temperature(0.7, 1.9, 1.1)},
}


def rollouts(seed: int, *, dtype: torch.dtype = torch.float64, temperature: float = 1.0) -> CreditInputs:
    """Three groups: two-sided, two-sided with a zero-advantage response, and one with no negative response. The mask has holes."""
    draw = torch.Generator().manual_seed(seed)
    advantage = torch.tensor([1.3, -0.4, -0.9, 0.8, -1.7, 0.0, 0.6, 0.5], dtype=dtype)
    group = torch.tensor([4, 4, 4, 1, 1, 1, 7, 7])
    responses = len(advantage)
    hidden = torch.randn(responses, COLUMNS, WIDTH, generator=draw, dtype=dtype)
    head = torch.randn(VOCAB, WIDTH, generator=draw, dtype=dtype)
    tokens = torch.randint(VOCAB, (responses, COLUMNS), generator=draw)
    logp = (hidden @ head.T / temperature).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    mask = torch.rand(responses, COLUMNS, generator=draw) > 0.3
    mask[:, 0] = True
    return CreditInputs(advantage, mask, group, tokens, logp, torch.zeros_like(logp), seed, temperature, hidden, head)


def twin_of(inputs: CreditInputs, **knobs: Any) -> Twin:
    fields = {name: getattr(inputs, name).tolist() for name in Rollouts._fields}
    return delta_oracle(Rollouts(**fields), Knobs(sampling_temperature=inputs.temperature, **knobs))


def coefficients(inputs: CreditInputs, **knobs: Any) -> Tensor:
    evidence = {"tokens": inputs.tokens, "head": inputs.head, "sampling_temperature": inputs.temperature}
    return delta_coefficients(inputs.logp, inputs.hidden, inputs.advantage, inputs.mask, inputs.group, **evidence, **knobs)


def assert_is_twin(actual: Tensor, twin: Twin, tolerance: float) -> None:
    torch.testing.assert_close(actual.double(), torch.tensor(twin.coefficient, dtype=torch.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("refinements", [0, 1, 2, 3])
@pytest.mark.parametrize("scope", ["batch", "group", "shard"])
@pytest.mark.parametrize("proxy", PROXIES)
def test_every_scope_proxy_and_number_of_refinements(proxy: str, scope: str, refinements: int) -> None:
    for seed, shards in ((0, 2), (1, 3)):
        knobs = {"proxy": proxy, "scope": scope, "refinements": refinements, "shards": shards, "top_k": 3}
        inputs = rollouts(seed)
        assert_is_twin(coefficients(inputs, **knobs), twin_of(inputs, **knobs), 1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_ablation(variant: str, proxy: str, dtype: torch.dtype) -> None:
    for refinements in (0, 1, 3):
        knobs = {"proxy": proxy, "refinements": refinements, **VARIANTS[variant]}
        inputs = rollouts(2, dtype=dtype)
        assert_is_twin(coefficients(inputs, **knobs), twin_of(inputs, **knobs), TOLERANCE[dtype])


@pytest.mark.parametrize("top_k", [1, 2, VOCAB, 100])
def test_top_k_of_the_hidden_gradient(top_k: int) -> None:
    knobs = {"proxy": "hidden-gradient", "top_k": top_k}
    inputs = rollouts(3)
    assert_is_twin(coefficients(inputs, **knobs), twin_of(inputs, **knobs), 1e-9)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("proxy", PROXIES)
def test_logits_are_divided_by_the_sampling_temperature(proxy: str, temperature: float) -> None:
    inputs = rollouts(4, temperature=temperature)
    assert_is_twin(coefficients(inputs, proxy=proxy), twin_of(inputs, proxy=proxy), 1e-9)


@pytest.mark.parametrize("proxy", PROXIES)
def test_bfloat16_features_are_worked_on_in_float32(proxy: str) -> None:
    inputs = rollouts(5, dtype=torch.float32)
    inputs = inputs._replace(hidden=inputs.hidden.bfloat16(), head=inputs.head.bfloat16())
    assert_is_twin(coefficients(inputs, proxy=proxy), twin_of(inputs, proxy=proxy), 1e-4)


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("proxy", PROXIES)
def test_a_side_without_mass_leaves_every_valid_token_at_one(proxy: str, sign: float) -> None:
    inputs = rollouts(6)
    inputs = inputs._replace(advantage=sign * inputs.advantage.abs())
    assert torch.equal(coefficients(inputs, proxy=proxy), inputs.mask.double())
    assert_is_twin(coefficients(inputs, proxy=proxy), twin_of(inputs, proxy=proxy), 0.0)


@pytest.mark.parametrize("proxy", PROXIES)
def test_no_gradient_flows_through_coefficients(proxy: str) -> None:
    inputs = rollouts(7)
    tracked = {name: getattr(inputs, name).clone().requires_grad_() for name in ("logp", "hidden", "advantage", "head")}
    actual = coefficients(inputs._replace(**tracked), proxy=proxy)
    assert not actual.requires_grad
    assert torch.equal(actual, coefficients(inputs, proxy=proxy))


@pytest.mark.parametrize("variant", [name for name, knobs in VARIANTS.items() if "fixed_temperature" not in knobs])
def test_credit_is_coefficient_times_advantage(variant: str) -> None:
    inputs = rollouts(8, temperature=1.3)
    outcome = delta_credit(inputs, {"kept": 1}, proxy="head", scope="group", **VARIANTS[variant])
    twin = twin_of(inputs, proxy="head", scope="group", **VARIANTS[variant])
    assert_is_twin(outcome.coefficient, twin, 1e-9)
    scaled = [[value * advantage for value in row] for row, advantage in zip(twin.coefficient, inputs.advantage.tolist(), strict=True)]
    torch.testing.assert_close(outcome.credit, torch.tensor(scaled, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert outcome.state == {"kept": 1}


def test_constant_temperature_is_the_same_for_both_sides() -> None:
    inputs = rollouts(9)
    outcome = delta_credit(inputs, {}, temperature="constant", constant_gamma=0.35, refinements=2)
    assert_is_twin(outcome.coefficient, twin_of(inputs, fixed_temperature=(0.35, 0.35, 0.35), refinements=2), 1e-9)
    assert outcome.state == {}


@pytest.mark.parametrize("knobs", [{}, {"scope": "group"}, {"gamma_scale": 1.5, "refinements": 2}, {"coefficient_map": "symmetric"}])
def test_first_batch_temperature_is_remembered_through_json(knobs: dict[str, Any]) -> None:
    first, later = rollouts(10), rollouts(11)
    started = delta_credit(first, {"kept": 1}, temperature="first-batch", **knobs)
    adaptive = twin_of(first, **knobs)
    assert_is_twin(started.coefficient, adaptive, 1e-9)
    remembered = [sum(side) / len(adaptive.temperatures) for side in zip(*adaptive.temperatures, strict=True)]
    assert started.state == {"kept": 1, "temperature": pytest.approx(remembered, rel=1e-9)}

    restored = json.loads(json.dumps(started.state))
    resumed = delta_credit(later, restored, temperature="first-batch", **knobs)
    frozen = twin_of(later, fixed_temperature=tuple(remembered), **knobs)
    assert_is_twin(resumed.coefficient, frozen, 1e-9)
    assert resumed.state == restored
    assert not torch.allclose(resumed.coefficient, delta_credit(later, {}, **knobs).coefficient, atol=1e-4)


def test_a_one_sided_first_batch_leaves_the_temperature_to_the_next() -> None:
    inputs = rollouts(12)
    one_sided = delta_credit(inputs._replace(advantage=inputs.advantage.abs()), {}, temperature="first-batch")
    assert one_sided.state == {}
    assert delta_credit(inputs, one_sided.state, temperature="first-batch").state["temperature"] == pytest.approx(
        twin_of(inputs).temperatures[0], rel=1e-9
    )

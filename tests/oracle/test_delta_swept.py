"""DelTA swept from stored features against its nested-loop twin: every proxy, scope, ablation and place features can be in."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.test_delta import COLUMNS, PROXIES, VARIANTS, WIDTH, assert_is_twin, rollouts, twin_of
from tokencredit.credit import CreditInputs, delta_coefficients
from tokencredit.credit.delta import delta_credit
from tokencredit.credit.features import DeviceFeatures, FeatureStore, HostFeatures, RecomputedFeatures, cut
from tokencredit.types import FeatureSource

CPU = torch.device("cpu")


def stored(packed: Tensor, device_bytes: int | None) -> FeatureSource:
    store = FeatureStore(len(packed), packed.shape[1], packed.dtype, CPU, device_bytes, chunk=3)
    order = torch.randperm(len(packed), generator=torch.Generator().manual_seed(0))
    store.put(slice(0, 2), packed[:2])
    store.put(order[order >= 2], packed[order[order >= 2]])
    assert store.on_device == (device_bytes is None)
    return store.source()


SOURCES: dict[str, Callable[[Tensor], FeatureSource]] = {
    "on the device": DeviceFeatures,
    "on the device, in chunks": lambda packed: DeviceFeatures(packed, chunk=7),
    "on the host": lambda packed: HostFeatures(packed, CPU, chunk=4),
    "recomputed": lambda packed: RecomputedFeatures(lambda run: packed[run].clone(), cut(len(packed), 5), packed.shape[1]),
    "stored on the device": lambda packed: stored(packed, None),
    "stored on the host": lambda packed: stored(packed, 1),
}


def swept(inputs: CreditInputs, source: str = "on the device") -> CreditInputs:
    """Evidence as the sweeps take it: features of valid tokens only."""
    return inputs._replace(hidden=SOURCES[source](inputs.hidden[inputs.mask]))


def coefficients(inputs: CreditInputs, **knobs: Any) -> Tensor:
    evidence = {"tokens": inputs.tokens, "head": inputs.head, "sampling_temperature": inputs.temperature}
    return delta_coefficients(inputs.logp, inputs.hidden, inputs.advantage, inputs.mask, inputs.group, **evidence, **knobs)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scope", ["batch", "group", "shard"])
@pytest.mark.parametrize("proxy", PROXIES)
def test_every_scope_proxy_and_place(proxy: str, scope: str, source: str) -> None:
    for seed, refinements in ((0, 0), (1, 1), (2, 3)):
        knobs = {"proxy": proxy, "scope": scope, "refinements": refinements, "shards": 3, "top_k": 3}
        inputs = rollouts(seed)
        assert_is_twin(coefficients(swept(inputs, source), **knobs), twin_of(inputs, **knobs), 1e-9)


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_ablation(variant: str, proxy: str) -> None:
    for refinements, scope in ((0, "batch"), (1, "group"), (3, "batch")):
        knobs = {"proxy": proxy, "refinements": refinements, "scope": scope, **VARIANTS[variant]}
        inputs = rollouts(2)
        assert_is_twin(coefficients(swept(inputs), **knobs), twin_of(inputs, **knobs), 1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("scope", ["batch", "group", "shard"])
@pytest.mark.parametrize("proxy", PROXIES)
def test_padded_half_precision_states_are_swept_where_they_are(proxy: str, scope: str, dtype: torch.dtype) -> None:
    inputs = rollouts(5)
    wider = torch.full((len(inputs.mask), COLUMNS + 2, WIDTH), torch.nan, dtype=dtype)
    wider[:, :COLUMNS] = inputs.hidden.to(dtype).where(inputs.mask[..., None], torch.nan)
    stored_states = inputs._replace(hidden=wider[:, :COLUMNS], head=inputs.head.to(dtype))
    known = stored_states._replace(hidden=stored_states.hidden.nan_to_num())
    knobs = {"proxy": proxy, "scope": scope, "top_k": 3}
    assert_is_twin(coefficients(stored_states, **knobs), twin_of(known, **knobs), 1e-9 if proxy == "row" else 1e-5)


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_source_of_bfloat16_is_worked_on_exactly(proxy: str) -> None:
    inputs = rollouts(6)
    inputs = inputs._replace(hidden=inputs.hidden.bfloat16(), head=inputs.head.bfloat16())
    for source in SOURCES:
        assert_is_twin(coefficients(swept(inputs, source), proxy=proxy), twin_of(inputs, proxy=proxy), 1e-9 if proxy == "row" else 1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("proxy", PROXIES)
def test_logits_are_divided_by_the_sampling_temperature(proxy: str, temperature: float) -> None:
    inputs = rollouts(4, temperature=temperature)
    assert_is_twin(coefficients(swept(inputs), proxy=proxy), twin_of(inputs, proxy=proxy), 1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("proxy", PROXIES)
def test_a_side_without_mass_leaves_every_valid_token_at_one(proxy: str, sign: float) -> None:
    inputs = rollouts(6)
    inputs = swept(inputs._replace(advantage=sign * inputs.advantage.abs()))
    assert torch.equal(coefficients(inputs, proxy=proxy), inputs.mask.double())
    assert delta_credit(inputs, {}, temperature="first-batch", proxy=proxy).state == {}


@pytest.mark.parametrize("knobs", [{}, {"scope": "group"}, {"proxy": "head", "scope": "group"}, {"score": "own-side", "refinements": 2}])
def test_first_batch_temperature_is_remembered_through_json(knobs: dict[str, Any]) -> None:
    first, later = rollouts(10), rollouts(11)
    started = delta_credit(swept(first), {"kept": 1}, temperature="first-batch", **knobs)
    adaptive = twin_of(first, **knobs)
    remembered = [sum(side) / len(adaptive.temperatures) for side in zip(*adaptive.temperatures, strict=True)]
    assert started.state == {"kept": 1, "temperature": pytest.approx(remembered, rel=1e-9)}
    resumed = delta_credit(swept(later), json.loads(json.dumps(started.state)), temperature="first-batch", **knobs)
    assert_is_twin(resumed.coefficient, twin_of(later, fixed_temperature=tuple(remembered), **knobs), 1e-9)


def test_random_scores_are_those_of_the_plain_twin() -> None:
    inputs = rollouts(7)
    for scope in ("batch", "group"):
        one, two = (coefficients(given, score="random", scope=scope, seed=3) for given in (inputs, swept(inputs)))
        assert torch.equal(one, two)


def test_features_of_another_number_of_tokens_are_refused() -> None:
    inputs = rollouts(8)
    fewer = inputs._replace(hidden=DeviceFeatures(inputs.hidden[inputs.mask][:-1]))
    with pytest.raises(ValueError, match=r"hidden holds \d+ tokens but mask \d+; they must be the same"):
        coefficients(fewer)


def test_recomputed_features_of_another_shape_are_refused() -> None:
    inputs = rollouts(8)
    packed = inputs.hidden[inputs.mask]
    wrong = RecomputedFeatures(lambda run: packed[run.start : run.stop - 1], cut(len(packed), 5), WIDTH)
    with pytest.raises(ValueError, match=r"tokens 0 to 5 were recomputed as \(4, 4\), with width 4"):
        coefficients(inputs._replace(hidden=wrong))


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_batch_without_tokens(proxy: str) -> None:
    inputs = rollouts(9)
    nothing = RecomputedFeatures(lambda run: torch.zeros(0), [], WIDTH)
    empty = inputs._replace(mask=torch.zeros_like(inputs.mask), hidden=nothing)
    assert torch.equal(coefficients(empty, proxy=proxy), torch.zeros_like(inputs.logp))
    assert torch.equal(coefficients(empty._replace(hidden=inputs.hidden.bfloat16()), proxy=proxy), torch.zeros_like(inputs.logp))


def test_a_store_counts_bytes() -> None:
    for allowed, stays in ((None, True), (6 * 4 * 2, True), (6 * 4 * 2 - 1, False)):
        assert FeatureStore(6, 4, torch.bfloat16, CPU, allowed).on_device == stays


@pytest.mark.parametrize("proxy", PROXIES)
def test_numbers_of_tokens_in_float32_as_on_a_gpu(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokencredit.credit.delta.dispatch._token_dtype", lambda _: torch.float32)
    inputs = rollouts(5)
    for knobs in ({"refinements": 2}, {"scope": "group"}, {"score": "own-side"}, {"coefficient_map": "symmetric"}):
        knobs = {"proxy": proxy, **knobs}
        assert_is_twin(coefficients(swept(inputs), **knobs), twin_of(inputs, **knobs), 1e-6)

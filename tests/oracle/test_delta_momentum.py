"""DelTA whose direction is averaged over steps: against its twin in plain Python, and what a checkpoint must hold for it."""

import json
from typing import Any

import pytest
import torch

from oracle.delta_oracle import (
    Knobs,
    Rollouts,
    Token,
    Vector,
    assign,
    final_score,
    map_and_normalise,
    own_margin,
    proxy_vector,
    side_centroids,
    temperatures_of,
)
from oracle.test_delta import PROXIES, coefficients, rollouts
from tokencredit.config.credit import DeltaCredit
from tokencredit.credit import CreditInputs
from tokencredit.credit.base import check_state_size, decode_tensor, encode_tensor
from tokencredit.credit.delta import delta_credit
from tokencredit.credit.features import DeviceFeatures

OURS: dict[str, Any] = {"scope": "group", "proxy": "head", "coefficient_map": "symmetric", "lam_min": 0.0, "lam_max": 2.0}


def naive_step(inputs: CreditInputs, past: Vector | None, momentum: float, **knobs: Any) -> tuple[list[Vector], Vector | None]:
    """Coefficients and the new past, scope after scope and token after token."""
    chosen = Knobs(**knobs)
    given = Rollouts(**{name: getattr(inputs, name).tolist() for name in Rollouts._fields})
    scopes: dict[int, list[Token]] = {}
    for row, valid in enumerate(given.mask):
        for column in (column for column, held in enumerate(valid) if held):
            token = Token(row, column, given.advantage[row], proxy_vector(given, row, column, chosen))
            scopes.setdefault(given.group[row] if chosen.scope == "group" else 0, []).append(token)
    result = [[0.0] * len(valid) for valid in given.mask]
    total: Vector | None = None
    mass = 0.0
    for tokens in scopes.values():
        values, direction = naive_scope(tokens, past, momentum, chosen)
        for token, value in zip(tokens, values, strict=True):
            result[token.row][token.column] = value
        if direction is not None:
            weight = sum(abs(token.advantage) for token in tokens)
            total = [weight * d + (0.0 if total is None else total[axis]) for axis, d in enumerate(direction)]
            mass += weight
    if total is None:
        return result, past
    mean = [value / mass for value in total]
    return result, mean if past is None else [momentum * old + (1 - momentum) * new for old, new in zip(past, mean, strict=True)]


def naive_scope(tokens: list[Token], past: Vector | None, momentum: float, knobs: Knobs) -> tuple[Vector, Vector | None]:
    if not any(token.advantage > 0 for token in tokens) or not any(token.advantage < 0 for token in tokens):
        return [1.0] * len(tokens), None

    def margins_at(positive: Vector, negative: Vector) -> Vector:
        if past is not None:
            middle = [(a + b) / 2 for a, b in zip(positive, negative, strict=True)]
            turned = [(1 - momentum) * (a - b) + momentum * old for a, b, old in zip(positive, negative, past, strict=True)]
            positive = [m + d / 2 for m, d in zip(middle, turned, strict=True)]
            negative = [m - d / 2 for m, d in zip(middle, turned, strict=True)]
        return [own_margin(token, positive, negative, knobs) for token in tokens]

    centroids = first = side_centroids(tokens, [1.0] * len(tokens))
    margins = margins_at(*centroids)
    temperature = temperatures_of(tokens, margins, knobs)
    for _ in range(knobs.refinements):
        centroids = side_centroids(tokens, [assign(token, m, temperature, knobs) for token, m in zip(tokens, margins, strict=True)])
        temperature = temperatures_of(tokens, margins, knobs)
        margins = margins_at(*centroids)
    scores = [final_score(token, margin, temperature, knobs) for token, margin in zip(tokens, margins, strict=True)]
    return map_and_normalise(scores, knobs), [a - b for a, b in zip(*first, strict=True)]


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("knobs", [{}, {"scope": "group", "coefficient_map": "symmetric"}, {"refinements": 2, "lam_min": 0.0}], ids=str)
def test_three_steps_equal_the_twin(proxy: str, knobs: dict[str, Any]) -> None:
    past, state = None, {}
    for seed in (20, 21, 22):
        inputs = rollouts(seed)
        expected, past = naive_step(inputs, past, 0.7, proxy=proxy, **knobs)
        outcome = delta_credit(inputs, state, momentum=0.7, proxy=proxy, **knobs)
        state = json.loads(json.dumps(outcome.state))
        torch.testing.assert_close(outcome.coefficient, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            decode_tensor(state["direction"]).flatten(), torch.tensor(past, dtype=torch.float64), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("knobs", [{}, OURS], ids=["published", "ours"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_without_momentum_or_without_a_past_it_is_delta_bit_for_bit(knobs: dict[str, Any], dtype: torch.dtype) -> None:
    inputs = rollouts(30, dtype=dtype)
    plain = coefficients(inputs, **knobs)
    forgetful, first = (delta_credit(inputs, {"kept": 1}, momentum=momentum, **knobs) for momentum in (0.0, 0.9))
    assert torch.equal(forgetful.coefficient, plain)
    assert forgetful.state == {"kept": 1}
    assert torch.equal(first.coefficient, plain)
    later = delta_credit(rollouts(31, dtype=dtype), first.state, momentum=0.9, **knobs)
    assert not torch.allclose(later.coefficient, coefficients(rollouts(31, dtype=dtype), **knobs), atol=1e-3)


def test_a_resumed_run_has_the_same_bits() -> None:
    states: list[Any] = [{}, {}]
    for seed in range(40, 44):
        outcomes = [delta_credit(rollouts(seed), state, momentum=0.5, **OURS) for state in states]
        assert torch.equal(outcomes[0].credit, outcomes[1].credit)
        states = [outcomes[0].state, json.loads(json.dumps(outcomes[1].state))]
    assert states[0] == states[1]
    assert -1 <= states[0]["direction_agreement"] <= 1


@pytest.mark.parametrize("proxy", PROXIES)
def test_features_of_every_kind_take_the_plain_path(proxy: str) -> None:
    inputs = rollouts(50, dtype=torch.float32)
    state = delta_credit(rollouts(51, dtype=torch.float32), {}, momentum=0.5, proxy=proxy).state
    expected = delta_credit(inputs, state, momentum=0.5, proxy=proxy)
    packed = inputs._replace(hidden=DeviceFeatures(inputs.hidden[inputs.mask], chunk=4))
    assert torch.equal(delta_credit(packed, state, momentum=0.5, proxy=proxy).credit, expected.credit)
    half = inputs._replace(hidden=inputs.hidden.bfloat16())
    rounded = inputs._replace(hidden=half.hidden.float())
    assert torch.equal(
        delta_credit(half, state, momentum=0.5, proxy=proxy).credit, delta_credit(rounded, state, momentum=0.5, proxy=proxy).credit
    )


def test_a_batch_without_two_sides_leaves_the_past_alone() -> None:
    state = delta_credit(rollouts(60), {}, momentum=0.5).state
    one_sided = rollouts(61)
    assert delta_credit(one_sided._replace(advantage=one_sided.advantage.abs()), state, momentum=0.5).state == state


def test_what_is_packed_comes_back_to_the_bit() -> None:
    tensor = torch.randn(3, 5, dtype=torch.float32)
    assert torch.equal(decode_tensor(json.loads(json.dumps(encode_tensor(tensor)))), tensor.double())


def test_a_direction_too_large_to_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"is 151,936 x 896 numbers \(545 MB in every checkpoint\), and at most 8,388,608 \(34 MB\)"):
        check_state_size((151_936, 896), "direction", "use another proxy")
    check_state_size((4096,), "direction", "")
    monkeypatch.setattr("tokencredit.credit.base.MAX_STATE_NUMBERS", 10)
    with pytest.raises(ValueError, match=r"direction with proxy 'head' is 7 x 4 numbers .* use proxy 'hidden-gradient' or 'row'"):
        delta_credit(rollouts(70), {}, momentum=0.5, proxy="head")
    assert "direction" in delta_credit(rollouts(70), {}, momentum=0.5, proxy="hidden-gradient").state


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_a_momentum_that_is_none_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum"):
        delta_credit(rollouts(0), {}, momentum=momentum)
    with pytest.raises(ValueError, match="momentum"):
        DeltaCredit(momentum=momentum)


@pytest.mark.parametrize("score", ["random", "own-side"])
def test_momentum_needs_a_contrast(score: Any) -> None:
    with pytest.raises(ValueError, match="momentum"):
        delta_credit(rollouts(0), {}, momentum=0.5, score=score)
    with pytest.raises(ValueError, match="momentum"):
        DeltaCredit(momentum=0.5, score=score)

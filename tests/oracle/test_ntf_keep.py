"""The filter that keeps exploration: its twin, its share over a run, and the entropy of a real softmax policy that follows its credit."""

import inspect
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.test_credit_masks import naive_ntf
from tokencredit.config import as_kwargs
from tokencredit.config.credit import NtfKeepCredit, SiblingContextCredit, SiblingValueCredit
from tokencredit.config.train import METHODS
from tokencredit.credit import CREDITS, CreditInputs
from tokencredit.credit.ntf_keep import MAX_BINS, entropy_push, entropy_strength, expected_push, orthogonalized

VOCABULARY = 6


def made_up_inputs(seed: int, rows: int = 24, columns: int = 11, dtype: torch.dtype = torch.float64) -> CreditInputs:
    """Tokens drawn from random distributions; uneven lengths, holes, a row without tokens, an advantage of 0, NaN outside the mask."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, columns, VOCABULARY, generator=draw, dtype=dtype)
    tokens = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=draw).view(rows, columns)
    logp = logits.log_softmax(-1)
    lengths = torch.randint(1, columns + 1, (rows,), generator=draw)
    lengths[2] = 0
    mask = (torch.arange(columns) < lengths[:, None]) & (torch.rand(rows, columns, generator=draw) > 0.15)
    advantage = torch.randn(rows, generator=draw, dtype=dtype)
    advantage[:4] = torch.tensor([1.0, -1.0, -0.5, 0.0], dtype=dtype)
    return CreditInputs(
        advantage=advantage,
        mask=mask,
        group=torch.zeros(rows, dtype=torch.long),
        tokens=tokens,
        logp=logp.gather(-1, tokens[..., None]).squeeze(-1).where(mask, math.nan),
        entropy=-(logp.exp() * logp).sum(-1).where(mask, math.nan),
        seed=seed,
    )


def naive_slopes(inputs: CreditInputs) -> dict[tuple[int, int], float]:
    places = [tuple(place) for place in inputs.mask.nonzero().tolist()]
    ranked = sorted(places, key=lambda place: (float(inputs.entropy[place]), place))
    bins = min(max(1, len(places) // 64), MAX_BINS)
    push = {place: math.exp(inputs.logp[place]) * float(inputs.logp[place] + inputs.entropy[place]) for place in places}
    slopes = {}
    for number in range(bins):
        run = [place for rank, place in enumerate(ranked) if rank * bins // len(ranked) == number]
        mean = sum(push[place] for place in run) / len(run)
        slopes |= {place: mean - push[place] for place in run}
    return slopes


def naive_credit(inputs: CreditInputs, *, keep: str, orthogonal: str) -> list[list[float]]:
    advantage = inputs.advantage.tolist()
    credit = [[c * a for c in row] for a, row in zip(advantage, naive_ntf(inputs, keep=keep), strict=True)]
    chosen = [
        (i, t)
        for i, t in inputs.mask.nonzero().tolist()
        if credit[i][t] != 0 and (orthogonal == "all" or (orthogonal == "kept" and advantage[i] < 0))
    ]
    slopes = naive_slopes(inputs)
    along = sum(credit[i][t] * slopes[i, t] for i, t in chosen)
    size = sum(slopes[place] ** 2 for place in chosen)
    for i, t in chosen:
        credit[i][t] -= slopes[i, t] * along / size
    return credit


@pytest.mark.parametrize("orthogonal", ["none", "kept", "all"])
@pytest.mark.parametrize("keep", ["0.1", "0.3", "1"])
def test_equals_the_naive_twin(keep: str, orthogonal: str) -> None:
    for seed in range(4):
        inputs = made_up_inputs(seed)
        outcome = CREDITS["ntf-keep"](inputs, {"kept": 1}, keep=float(keep), anneal="none", orthogonal=orthogonal)
        expected = torch.tensor(naive_credit(inputs, keep=keep, orthogonal=orthogonal), dtype=torch.float64)
        torch.testing.assert_close(outcome.credit, expected, rtol=1e-9, atol=1e-12)
        assert outcome.state == {"kept": 1, "keep": float(keep)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_without_fading_or_projection_it_is_ntf_bit_for_bit(dtype: torch.dtype) -> None:
    inputs = made_up_inputs(3, dtype=dtype)
    outcome = CREDITS["ntf-keep"](inputs, {}, keep=0.2, anneal="none")
    expected = CREDITS["ntf"](inputs, {}, keep=0.2)
    assert torch.equal(outcome.credit, expected.credit)
    assert torch.equal(outcome.coefficient, expected.coefficient)


@pytest.mark.parametrize("choice", [NtfKeepCredit, SiblingValueCredit, SiblingContextCredit])
def test_defaults_are_those_of_the_choice(choice: type[Any]) -> None:
    signature = inspect.signature(CREDITS[choice.model_fields["type"].default])
    defaults = {p.name: p.default for p in signature.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name != "reduce"}
    assert defaults == as_kwargs(choice())


def test_what_each_method_needs() -> None:
    needs = {name: set(METHODS["credit"][name].needs) for name in ("ntf-keep", "sibling-value", "sibling-context")}
    assert needs == {"ntf-keep": {"logp", "entropy"}, "sibling-value": {"hidden"}, "sibling-context": set()}


# --- fading


def test_the_filter_fades_between_the_floor_and_half_of_it() -> None:
    assert [entropy_strength(h, 2.0, entropy_floor=0.5) for h in (2.0, 1.0, 0.75, 0.5, 0.1)] == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert entropy_strength(0.0, 0.0) == 1.0


def with_entropy(inputs: CreditInputs, mean: float) -> CreditInputs:
    return inputs._replace(entropy=torch.full_like(inputs.entropy, mean))


def test_a_run_by_entropy() -> None:
    inputs, state, shares = made_up_inputs(1), {}, []
    for mean in (0.8, 0.9, 0.4, 0.3, 0.2, 0.05, 0.8):
        outcome = CREDITS["ntf-keep"](with_entropy(inputs, mean), state, keep=0.2)
        state = json.loads(json.dumps(outcome.state))
        shares.append(state["keep"])
        kept = CREDITS["ntf"](inputs, {}, keep=shares[-1])
        assert torch.equal(outcome.credit, kept.credit)
    assert shares == pytest.approx([0.2, 0.2, 0.2, 0.6, 1.0, 1.0, 0.2])
    assert state["initial_entropy"] == pytest.approx(0.8)


def test_a_run_by_steps() -> None:
    inputs, state, shares = made_up_inputs(1), {}, []
    for _ in range(6):
        outcome = CREDITS["ntf-keep"](inputs, state, keep=0.2, anneal="steps", anneal_steps=4)
        state = json.loads(json.dumps(outcome.state))
        shares.append(state["keep"])
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert torch.equal(outcome.credit, CREDITS["uniform"](inputs, {}).credit)


# --- the entropy of a softmax policy, by differences


def mean_entropy(logits: Tensor) -> Tensor:
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1).mean()


def change_of_entropy(logits: Tensor, tokens: Tensor, credit: Tensor) -> float:
    """Central difference along the policy gradient of every place's own logits."""
    push = credit[:, None] * (torch.nn.functional.one_hot(tokens, logits.shape[-1]) - logits.softmax(-1))
    step = 1e-4
    return float((mean_entropy(logits + step * push) - mean_entropy(logits - step * push)) / (2 * step))


def test_the_slope_of_a_token_is_what_its_push_does_to_entropy() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40, 9, generator=draw, dtype=torch.float64)
    tokens = torch.randint(9, (40,), generator=draw)
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    expectation = (logp.exp() * entropy_push(logp, entropy[:, None])).sum(-1)
    slope = expectation - entropy_push(logp.gather(-1, tokens[:, None])[:, 0], entropy)
    for place in range(40):
        alone = torch.zeros(40, dtype=torch.float64).index_fill(0, torch.tensor(place), 1.0)
        assert change_of_entropy(logits, tokens, alone) == pytest.approx(float(slope[place]) / 40, abs=1e-9)
    credit = torch.randn(40, generator=draw, dtype=torch.float64)
    chosen = torch.rand(40, generator=draw) > 0.4
    left = orthogonalized(credit, slope, chosen)
    assert torch.equal(left[~chosen], credit[~chosen])
    assert abs(change_of_entropy(logits, tokens, credit.where(chosen, 0.0))) > 1e-3
    assert change_of_entropy(logits, tokens, left.where(chosen, 0.0)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("orthogonal", ["kept", "all"])
def test_credit_leaves_the_entropy_of_a_softmax_policy_alone(orthogonal: str) -> None:
    """Tokens as often as the policy says, so that their mean is the expectation: 60 places, one distribution in two orders of tokens."""
    counts = torch.tensor([1, 2, 4, 8, 15])
    tokens = torch.arange(5).repeat_interleave(counts).repeat(2)
    logits = (counts / 30).double().log().expand(60, 5).clone()
    logits[30:], tokens[30:] = logits[30:].flip(-1), 4 - tokens[30:]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))
    tokens, logits = tokens[order], logits[order]
    logp = logits.log_softmax(-1)
    inputs = CreditInputs(
        advantage=torch.tensor([1.0, -1.0, -0.5, 2.0, -0.7, -0.8], dtype=torch.float64),
        mask=torch.ones(6, 10, dtype=torch.bool),
        group=torch.zeros(6, dtype=torch.long),
        tokens=tokens.view(6, 10),
        logp=logp.gather(-1, tokens[:, None]).view(6, 10),
        entropy=-(logp.exp() * logp).sum(-1).view(6, 10),
        seed=0,
    )
    plain, projected = (CREDITS["ntf-keep"](inputs, {}, keep=0.4, anneal="none", orthogonal=way).credit for way in ("none", orthogonal))
    if orthogonal == "kept":
        negative = (inputs.advantage < 0)[:, None]
        assert torch.equal(projected.where(~negative, 0.0), plain.where(~negative, 0.0))
        plain, projected = plain.where(negative, 0.0), projected.where(negative, 0.0)
    assert abs(change_of_entropy(logits, tokens, plain.flatten())) > 1e-3
    assert change_of_entropy(logits, tokens, projected.flatten()) == pytest.approx(0, abs=1e-7)
    assert not projected[plain == 0].any()


def test_the_mean_over_like_entropies_nears_the_expectation() -> None:
    """4096 tokens of 64 distributions of 64 entropies: what a token adds to chance averages out."""
    draw = torch.Generator().manual_seed(5)
    base = torch.randn(8, generator=draw, dtype=torch.float64)
    logits = base * torch.linspace(0.3, 3.0, 64, dtype=torch.float64)[:, None]
    of_token = torch.arange(64).repeat_interleave(512)
    tokens = torch.multinomial(logits.softmax(-1)[of_token], 1, generator=draw)[:, 0]
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    exact = (logp.exp() * entropy_push(logp, entropy[:, None])).sum(-1)
    push = entropy_push(logp[of_token].gather(-1, tokens[:, None])[:, 0], entropy[of_token])
    found = expected_push(push, entropy[of_token])
    assert float((found - exact[of_token]).abs().max()) < 0.05
    assert float(exact.max() - exact.min()) > 0.1

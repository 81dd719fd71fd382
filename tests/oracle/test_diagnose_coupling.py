"""The LM-head kernel and its parts against loops over every pair, autograd, and answers worked out on paper."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tokencredit.credit.delta.vectors import HeadVectors
from tokencredit.diagnose.coupling import Sources, coupling, pair_table
from tokencredit.diagnose.head_kernel import head_mismatch, head_parts, kernel_block
from tokencredit.diagnose.table import TokenTable

VOCAB, WIDTH, TEMPERATURE = 5, 3, 1.7
BUCKETS = ("p < 0.5", "p 0.5–0.9", "p 0.9–0.99", "p ≥ 0.99")


def naive_softmax(hidden: list[float], head: list[list[float]], temperature: float) -> list[float]:
    logits = [sum(w * h for w, h in zip(row, hidden, strict=True)) / temperature for row in head]
    sizes = [math.exp(logit - max(logits)) for logit in logits]
    return [size / sum(sizes) for size in sizes]


def naive_kernel(one: HeadVectors, a: int, two: HeadVectors, b: int) -> tuple[float, float]:
    """Factor and kernel of one pair, coordinate by coordinate of the two vocab x hidden gradients."""
    head = one.head.tolist()
    p, q = (naive_softmax(v.hidden[i].tolist(), head, v.temperature) for v, i in ((one, a), (two, b)))
    left = [(token == int(one.tokens[a])) - p[token] for token in range(len(head))]
    right = [(token == int(two.tokens[b])) - q[token] for token in range(len(head))]
    factor = sum(x * y for x, y in zip(left, right, strict=True))
    kernel = 0.0
    for x, y in zip(left, right, strict=True):
        for h, k in zip(one.hidden[a].tolist(), two.hidden[b].tolist(), strict=True):
            kernel += (x * h / one.temperature) * (y * k / two.temperature)
    return factor, kernel


def naive_bucket(probability: float) -> str:
    return BUCKETS[sum(probability >= edge for edge in (0.5, 0.9, 0.99))]


def make_case(seed: int, sources: int = 14, absent: int = 3) -> SimpleNamespace:
    """Some looked-at tokens are sources, in another order; some are in none. Confidences reach from 0.01 to 0.999."""
    draw = torch.Generator().manual_seed(seed)
    head = torch.randn(VOCAB, WIDTH, generator=draw, dtype=torch.float64)
    hidden = torch.randn(sources + absent, WIDTH, generator=draw, dtype=torch.float64)
    hidden *= 4 * torch.rand(sources + absent, 1, generator=draw, dtype=torch.float64)
    likely = (hidden @ head.T).argmax(-1)
    drawn = torch.randint(VOCAB, (sources + absent,), generator=draw)
    tokens = likely.where(torch.rand(sources + absent, generator=draw) < 0.5, drawn)
    weight = torch.randn(sources, generator=draw, dtype=torch.float64)
    order = torch.randperm(sources + absent, generator=draw)[: sources + absent - 4]
    every = HeadVectors(hidden, tokens, head, TEMPERATURE, chunk=4)
    return SimpleNamespace(
        sources=every.take(torch.arange(sources)),
        looked_at=every.take(order),
        weight=weight,
        own_index=order.where(order < sources, -1),
        logp=log_probs(every.take(order)),
    )


def log_probs(vectors: HeadVectors) -> Tensor:
    return (vectors.hidden @ vectors.head.T / vectors.temperature).log_softmax(-1).gather(-1, vectors.tokens[:, None]).squeeze(-1)


def naive_parts(case: SimpleNamespace) -> tuple[Tensor, ...]:
    parts = torch.zeros(3, len(case.looked_at), dtype=torch.float64)
    for a in range(len(case.looked_at)):
        for b in range(len(case.sources)):
            own = int(case.own_index[a]) == b
            kind = 0 if own else 1 if int(case.looked_at.tokens[a]) == int(case.sources.tokens[b]) else 2
            parts[kind, a] += float(case.weight[b]) * naive_kernel(case.looked_at, a, case.sources, b)[1]
    return parts.unbind()


def make_table(case: SimpleNamespace, **columns: Any) -> TokenTable:
    count = len(case.looked_at)
    place = torch.arange(count)
    default: dict[str, Any] = {
        "row": place // 3,
        "group": place // 6,
        "position": place % 3,
        "token": case.looked_at.tokens,
        "text": tuple("x" * count),
        "token_class": tuple(("copy", "result")[number % 2] for number in range(count)),
        "logp": case.logp,
        "entropy": torch.zeros(count, dtype=torch.float64),
        "credit": torch.zeros(count, dtype=torch.float64),
        "advantage": torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)[(place // 3) % 3],
        "score": torch.zeros(count, dtype=torch.float64),
        "optimizer_step": torch.zeros(count, dtype=torch.long),
    }
    return TokenTable(**(default | columns))


def diagnose(case: SimpleNamespace, **knobs: Any):
    sources = Sources(case.sources.hidden, case.sources.tokens, case.weight)
    return coupling(
        make_table(case), case.looked_at.hidden, case.sources.head, sources, case.own_index, temperature=TEMPERATURE, chunk=4, **knobs
    )


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_sums_over_pairs(seed: int) -> None:
    case = make_case(seed)
    assert bool((case.own_index < 0).any())
    found = head_parts(case.looked_at, case.sources, case.weight, case.own_index)
    for actual, expected in zip(found, naive_parts(case), strict=True):
        assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_a_token_that_pushes_nothing_has_no_own_part_and_one_without_twins_no_same_part() -> None:
    case = make_case(1)
    lonely = HeadVectors(case.looked_at.hidden[:1], torch.tensor([VOCAB - 1]), case.sources.head, TEMPERATURE)
    sources = HeadVectors(
        torch.cat([lonely.hidden, case.sources.hidden]),
        torch.cat([lonely.tokens, case.sources.tokens % (VOCAB - 1)]),
        case.sources.head,
        TEMPERATURE,
    )
    weight = torch.cat([torch.tensor([2.0]), case.weight])
    inside = head_parts(lonely, sources, weight, torch.tensor([0]))
    assert float(inside.own) == pytest.approx(2 * naive_kernel(lonely, 0, lonely, 0)[1])
    assert float(inside.same) == 0.0
    outside = head_parts(lonely, sources, weight, torch.tensor([-1]))
    assert float(outside.own) == 0.0
    assert float(outside.same) == pytest.approx(float(inside.own))
    assert float(outside.other) == pytest.approx(float(inside.other))


@pytest.mark.parametrize("seed", range(3))
def test_parts_add_up_to_what_autograd_says_of_a_linear_head(seed: int) -> None:
    """A gradient step on the head by sum_b w_b log p_b raises log p_a by the inner product of the two gradients."""
    case = make_case(seed)
    head = case.sources.head.clone().requires_grad_()

    def logp(vectors: HeadVectors) -> Tensor:
        return (vectors.hidden @ head.T / TEMPERATURE).log_softmax(-1).gather(-1, vectors.tokens[:, None]).squeeze(-1)

    (step,) = torch.autograd.grad((case.weight * logp(case.sources)).sum(), head)
    gradients = [torch.autograd.grad(value, head, retain_graph=True)[0] for value in logp(case.looked_at)]
    found = head_parts(case.looked_at, case.sources, case.weight, case.own_index)
    assert_close(found.own + found.same + found.other, torch.stack([(gradient * step).sum() for gradient in gradients]))
    own = [gradient.square().sum() * (case.weight[i] if i >= 0 else 0) for gradient, i in zip(gradients, case.own_index, strict=True)]
    assert_close(found.own, torch.stack(own))


@pytest.mark.parametrize(("temperature", "shrunk"), [(1.0, 1.0), (2.0, 4.0)])
def test_a_policy_worked_out_on_paper(temperature: float, shrunk: float) -> None:
    """Two tokens, head 0, h = 1: p = 1/2, so e_y - p = (1/2, -1/2) or its negative and K is 1/2 for the same token, -1/2 else.

    Sources 0, 0, 1 with weights 1, -2, 3. First token: own 1/2, same -2/2, other -3/2. Third: own 3/2, same 0, other -1/2 + 2/2.
    """
    vectors = HeadVectors(torch.ones(3, 1), torch.tensor([0, 0, 1]), torch.zeros(2, 1), temperature)
    found = head_parts(vectors, vectors, torch.tensor([1.0, -2.0, 3.0]), torch.arange(3))
    assert (shrunk * found.own).tolist() == [0.5, -1.0, 1.5]
    assert (shrunk * found.same).tolist() == [-1.0, 0.5, 0.0]
    assert (shrunk * found.other).tolist() == [-1.5, -1.5, 0.5]


@pytest.mark.parametrize(
    ("tokens", "chances", "factor", "digits"),
    [
        ((0, 0), (0.05, 0.05), 0.92, 2),
        ((0, 0), (0.5, 0.5), 0.26, 2),
        ((0, 0), (0.05, 0.95), 0.05, 2),
        ((0, 0), (0.95, 0.95), 0.003, 3),
        ((0, 1), (0.05, 0.05), -0.02, 2),
    ],
)
def test_the_factor_for_spread_out_predictions_over_fifty_tokens(tokens, chances, factor, digits) -> None:
    """The target has the chance given, the other 49 share the rest; the hidden states are the logits, so the head is the identity."""
    logits = torch.full((2, 50), 0.0, dtype=torch.float64)
    for place, (token, chance) in enumerate(zip(tokens, chances, strict=True)):
        logits[place] = math.log((1 - chance) / 49)
        logits[place, token] = math.log(chance)
    vectors = HeadVectors(logits, torch.tensor(tokens), torch.eye(50, dtype=torch.float64), 1.0)
    one, two = (vectors.take(torch.tensor([place])) for place in (0, 1))
    assert round(float(kernel_block(one, two).factor), digits) == factor


def test_the_own_part_of_a_nearly_certain_token_is_not_lost_in_rounding() -> None:
    """Logits (15, 0) in float32: 1 - p is 3.06e-7, so K is 2 (1 - p)^2 15^2, far below the rounding of 1 - 2p + ||p||^2."""
    vectors = HeadVectors(torch.tensor([[15.0]]), torch.tensor([0]), torch.tensor([[1.0], [0.0]]), 1.0)
    found = head_parts(vectors, vectors, torch.tensor([1.0]), torch.tensor([0]))
    doubt = 1 / (1 + math.exp(15))
    assert float(found.own) == pytest.approx(2 * doubt**2 * 15**2, rel=0.5)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_the_pair_table_counts_every_pair_once(chunk: int) -> None:
    case = make_case(2)
    cells: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for a in range(len(case.looked_at)):
        for b in range(a):
            same = "same" if int(case.looked_at.tokens[a]) == int(case.looked_at.tokens[b]) else "different"
            buckets = sorted((naive_bucket(math.exp(float(case.logp[i]))) for i in (a, b)), key=BUCKETS.index)
            cells.setdefault((same, buckets[0], buckets[1]), []).append(naive_kernel(case.looked_at, a, case.looked_at, b))
    total = sum(abs(kernel) for pairs in cells.values() for _, kernel in pairs)
    rows = pair_table(case.looked_at, case.logp, chunk=chunk)
    assert {(row["identity"], row["confidence"], row["other_confidence"]) for row in rows} == cells.keys()
    assert len(cells) > 6
    for row in rows:
        pairs = cells[str(row["identity"]), str(row["confidence"]), str(row["other_confidence"])]
        assert row["pairs"] == len(pairs)
        assert row["mean_factor"] == pytest.approx(sum(factor for factor, _ in pairs) / len(pairs))
        assert row["mean_kernel"] == pytest.approx(sum(kernel for _, kernel in pairs) / len(pairs))
        assert row["mean_abs_kernel"] == pytest.approx(sum(abs(kernel) for _, kernel in pairs) / len(pairs))
        assert row["share"] == pytest.approx(sum(abs(kernel) for _, kernel in pairs) / total)


def test_above_the_limit_pairs_are_a_seeded_sample_without_replacement() -> None:
    case = make_case(3)
    one, again, another = (pair_table(case.looked_at, case.logp, limit=6, seed=seed) for seed in (1, 1, 2))
    assert sum(int(row["pairs"] or 0) for row in one) == 15
    assert one == again != another
    chosen = torch.randperm(len(case.looked_at), generator=torch.Generator().manual_seed(1))[:6].sort().values
    assert one == pair_table(case.looked_at.take(chosen), case.logp[chosen])
    assert "a sample of 6 tokens" in diagnose(case, limit=6).finding.note
    assert "a sample" not in diagnose(case).finding.note
    assert diagnose(case, limit=6).finding.numbers["tokens/pairs"] == 6


def test_the_finding_shares_out_absolute_parts() -> None:
    case = make_case(0)
    own, same, other = (part.tolist() for part in naive_parts(case))
    result = diagnose(case)
    assert_close(result.same, torch.tensor(same, dtype=torch.float64))
    table = make_table(case)
    places = [place for place, at in enumerate(case.own_index.tolist()) if at >= 0]
    assert 0 < len(places) < len(table)
    by = {
        "by_side": ("side", [{1.0: "positive", -1.0: "negative", 0.0: "none"}[a] for a in table.advantage.tolist()]),
        "by_confidence": ("confidence", [naive_bucket(math.exp(value)) for value in case.logp.tolist()]),
        "by_class": ("token_class", list(table.token_class)),
    }
    for name, (label, labels) in by.items():
        rows = {row[label]: row for row in result.finding.tables[name]}
        assert rows.keys() == set(labels)
        for value, row in rows.items():
            chosen = [place for place in places if labels[place] == value]
            sizes = [sum(abs(part[place]) for place in chosen) for part in (own, same, other)]
            expected = [size / sum(sizes) if chosen else math.nan for size in sizes]
            assert [row["own"], row["same"], row["other"]] == pytest.approx(expected, nan_ok=True)
            assert row["tokens"] == len(chosen)
    sizes = [sum(abs(part[place]) for place in places) for part in (own, same, other)]
    numbers = result.finding.numbers
    assert [numbers[f"share/{part}"] for part in ("own", "same", "other")] == pytest.approx([size / sum(sizes) for size in sizes])
    pushed = [place for place in places if own[place] != 0]
    overruled = [place for place in pushed if own[place] * (own[place] + same[place] + other[place]) < 0]
    assert numbers["outvoted"] == pytest.approx(len(overruled) / len(pushed))
    assert 0 < numbers["outvoted"] < 1


def test_how_much_of_same_token_coupling_lies_between_unsure_tokens() -> None:
    case = make_case(2)
    count = len(case.looked_at)
    pairs = [(a, b) for a in range(count) for b in range(a) if int(case.looked_at.tokens[a]) == int(case.looked_at.tokens[b])]
    low = [(a, b) for a, b in pairs if max(float(case.logp[a]), float(case.logp[b])) < math.log(0.5)]
    size = {pair: abs(naive_kernel(case.looked_at, pair[0], case.looked_at, pair[1])[1]) for pair in pairs}
    numbers = diagnose(case).finding.numbers
    assert low
    assert numbers["pairs/low_of_same"] == pytest.approx(len(low) / len(pairs))
    assert numbers["pairs/low_of_same_coupling"] == pytest.approx(sum(size[pair] for pair in low) / sum(size.values()))
    assert numbers["pairs/same"] == pytest.approx(len(pairs) / (count * (count - 1) / 2))
    every = {(a, b): abs(naive_kernel(case.looked_at, a, case.looked_at, b)[1]) for a in range(count) for b in range(a)}
    assert numbers["pairs/same_coupling"] == pytest.approx(sum(size.values()) / sum(every.values()))


def test_a_head_that_is_not_the_whole_story_is_told() -> None:
    case = make_case(0)
    assert diagnose(case).finding.numbers["head_mismatch"] == pytest.approx(0, abs=1e-12)
    assert "approximate" not in diagnose(case).finding.note
    case.logp[2] -= 0.25
    result = diagnose(case)
    assert result.finding.numbers["head_mismatch"] == pytest.approx(0.25)
    assert "up to 0.25" in result.finding.note
    assert "approximate" in result.finding.note
    assert head_mismatch(case.looked_at.take(torch.tensor([0, 1, 3])), case.logp[[0, 1, 3]]) == pytest.approx(0, abs=1e-12)


def test_nothing_pushing_leaves_shares_unknown() -> None:
    case = make_case(0)
    case.weight.zero_()
    result = diagnose(case)
    assert result.own.tolist() == [0.0] * len(case.looked_at)
    assert math.isnan(result.finding.numbers["share/own"])
    assert math.isnan(result.finding.numbers["outvoted"])
    assert "an unknown share" in result.finding.note


def test_half_precision_is_raised_to_float32_before_anything_is_summed() -> None:
    case = make_case(5)
    half, head = case.looked_at.hidden.bfloat16(), case.sources.head.bfloat16()
    low = Sources(case.sources.hidden.bfloat16(), case.sources.tokens, case.weight)
    high = Sources(low.hidden.double(), low.token, low.weight)
    table = make_table(case)
    found = coupling(table, half, head, low, case.own_index, temperature=TEMPERATURE)
    exact = coupling(table, half.double(), head.double(), high, case.own_index, temperature=TEMPERATURE)
    for actual, expected in zip(found[:3], exact[:3], strict=True):
        assert_close(actual, expected, rtol=1e-4, atol=1e-4)

"""The statistics of the credit benchmark against slow loops and numbers worked out by hand."""

import math
import statistics
from itertools import product

import pytest
import torch

from tokencredit.lab.credit.agreement import agreement, auroc, coefficient_table, concentration, pearson, share, tokens_holding
from tokencredit.lab.credit.batch import alike, stretched, together
from tokencredit.lab.credit.compare_gradients import gradient_record
from tokencredit.lab.credit.prefix_tree import token_advantage
from tokencredit.lab.credit.quality import (
    Halves,
    Products,
    axes_of,
    bounded,
    halves_without_entropy,
    paired,
    redrawn,
    rollouts_needed,
    surviving_t,
    view,
    without_entropy,
)
from tokencredit.stats import two_sided


def test_bonferroni_halves_the_level_over_all_comparisons() -> None:
    assert surviving_t(1, 31) == pytest.approx(2.039513, rel=1e-5)
    assert two_sided(surviving_t(40, 31), 31) == pytest.approx(0.05 / 40, rel=1e-9)


def test_a_paired_difference_by_hand() -> None:
    values = [0.1, -0.2, 0.4, 0.3, 0.1]
    found = paired(values)
    error = statistics.stdev(values) / math.sqrt(5)
    assert found.mean == pytest.approx(0.14)
    assert found.t == pytest.approx(0.14 / error)
    assert (found.low, found.high) == (pytest.approx(0.14 - 2.776445 * error), pytest.approx(0.14 + 2.776445 * error))
    assert paired([0.0, 0.0]).t == 0
    assert math.isnan(paired([0.3]).low)


def _tokens(seed: int = 0, prompts: int = 5, count: int = 60) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    credit = torch.randn(count, generator=generator, dtype=torch.float64).round(decimals=1)
    truth = 0.4 * credit + torch.randn(count, generator=generator, dtype=torch.float64)
    group = torch.randint(prompts, (count,), generator=generator)
    return {"credit": credit, "truth": truth, "group": group, "decisive": truth.abs() > 0.7}


def _repeated(times: list[float], group: torch.Tensor) -> list[int]:
    """Token numbers as a resample holds them."""
    return [token for token, prompt in enumerate(group.tolist()) for _ in range(int(times[prompt]))]


def test_pearson_of_every_resample_is_that_of_the_repeated_tokens() -> None:
    tokens = _tokens()
    times = redrawn(5, draws=6, seed=1)
    found = pearson(tokens["credit"], tokens["truth"], tokens["group"], times)
    for row, value in zip(times.tolist(), found.tolist(), strict=True):
        chosen = _repeated(row, tokens["group"])
        expected = statistics.correlation([float(tokens["credit"][at]) for at in chosen], [float(tokens["truth"][at]) for at in chosen])
        assert value == pytest.approx(expected, abs=1e-12)
    assert bool(pearson(torch.full((4,), 0.3), torch.randn(4), torch.tensor([0, 0, 1, 1]), redrawn(2, draws=2, seed=0)).isnan().all())


def test_auroc_counts_pairs_and_half_the_ties_of_every_resample() -> None:
    tokens = _tokens(seed=3)
    times = redrawn(5, draws=6, seed=2)
    size = tokens["credit"].abs()
    found = auroc(size, tokens["decisive"], tokens["group"], times)
    for row, value in zip(times.tolist(), found.tolist(), strict=True):
        chosen = _repeated(row, tokens["group"])
        up = [float(size[at]) for at in chosen if tokens["decisive"][at]]
        down = [float(size[at]) for at in chosen if not tokens["decisive"][at]]
        won = sum(1.0 if one > other else 0.5 if one == other else 0.0 for one, other in product(up, down))
        assert value == pytest.approx(won / len(up) / len(down), abs=1e-12)
    assert float(auroc(torch.full((60,), 1 / 3), tokens["decisive"], tokens["group"], times)[0]) == 0.5


def test_shares_and_signs_by_loops() -> None:
    tokens = _tokens(seed=5)
    credit, truth, decisive, group = (tokens[name] for name in ("credit", "truth", "decisive", "group"))
    format_token = torch.arange(60) % 3 == 0
    advantage = torch.where(torch.arange(60) < 40, 2.0, 0.0)
    times = redrawn(5, draws=4, seed=2)
    found = agreement(credit, advantage, truth, decisive, format_token, group, times)
    whole = sum(abs(one) for one in credit.tolist())
    assert found.on_decisive.value == pytest.approx(
        sum(abs(one) for one, kept in zip(credit.tolist(), decisive.tolist(), strict=True) if kept) / whole
    )
    assert found.on_format.value == pytest.approx(sum(abs(one) for one in credit.tolist()[::3]) / whole)
    asked = [(one, other) for one, other, kept in zip(credit.tolist(), truth.tolist(), decisive.tolist(), strict=True) if kept and one]
    assert found.same_sign.value == pytest.approx(sum(one * other > 0 for one, other in asked) / len(asked))
    # Tokens of a response without an advantage cannot be ranked by credit over advantage.
    alone = auroc(credit[:40].abs() / 2, decisive[:40], group[:40], times)
    assert found.auroc.value == pytest.approx(float(alone[0]))
    assert math.isnan(agreement(credit, advantage, truth, decisive, None, group, times).on_format.value)


def test_a_share_over_redrawn_prompts() -> None:
    weight, chosen, group = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([True, False, True, False]), torch.tensor([0, 0, 1, 1])
    times = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    assert share(weight, chosen, group, times).tolist() == pytest.approx([4 / 10, 1 / 3, 3 / 7])
    interval = bounded(torch.tensor([0.5, *[number / 1000 for number in range(1001)]], dtype=torch.float64))
    assert interval == pytest.approx((0.5, 0.025, 0.975))


def test_coefficients_by_class_and_side() -> None:
    credit = torch.tensor([1.0, 3.0, -1.0, -2.0, 0.5])
    advantage = torch.tensor([2.0, 2.0, -1.0, -1.0, 0.0])
    found = coefficient_table(credit, advantage, ["digit", "digit", "digit", "sign", "sign"])
    assert found == {"digit": {"positive": 1.0, "negative": 1.0}, "sign": {"positive": None, "negative": 2.0}}


def test_concentration_by_hand() -> None:
    truth = torch.tensor([0.5, -0.3, 0.06, 0.0, 0.0], dtype=torch.float64)
    variance = torch.tensor([0.01, 0.01, 0.0036, 0.0, 0.0], dtype=torch.float64)
    found = concentration(truth, variance, ["a", "b", "b", "c", "c"])
    assert found["share_above"] == {"0.05": 0.6, "0.1": 0.4, "0.2": 0.4, "0.3": 0.2}
    total = (0.25 - 0.01) + (0.09 - 0.01) + 0.0
    assert found["sum_of_squares"] == pytest.approx(total)
    assert found["sum_of_squares_with_noise"] == pytest.approx(0.3436)
    assert [found["classes"][name]["share_of_square"] for name in "abc"] == pytest.approx([0.24 / total, 0.08 / total, 0.0])
    # 0.24 of 0.32 is 75 %: the first token alone holds less than 80 %.
    assert found["tokens_holding_80_percent"] == pytest.approx(2 / 5)
    assert tokens_holding(torch.tensor([8.0, 1.0, 1.0]), torch.tensor([0.9, 0.3, 0.2]), 0.8) == pytest.approx(1 / 3)


def test_the_advantage_of_a_token_by_hand() -> None:
    found = token_advantage(0.75, [1, 1, 0, 1], [0, 0, 1, 0], spread=1.0)
    assert found.value == pytest.approx(0.25 * (0.75 - 0.25))
    assert found.variance == pytest.approx(0.25**2 * (0.25 / 4 + 0.25 / 4))
    ended = token_advantage(0.5, [1.0], [0, 1], spread=1.0)
    assert ended == pytest.approx((0.5 * 0.5, 0.25 * 0.5 / 2))
    assert token_advantage(0.9, [1.0, 1.0], [], spread=1.0) == pytest.approx((0.0, 0.0025))


def test_views_are_cosines_of_the_vectors_themselves() -> None:
    generator = torch.Generator().manual_seed(4)
    a, b, h = (torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(3))
    batches = torch.randn(5, 7, generator=generator, dtype=torch.float64) + a
    reference = (a + b) / 2
    halves = Halves(*(float(one @ two) for one, two in ((a, a), (b, b), (a, b), (a, h), (b, h), (h, h))))

    def rest(vector: torch.Tensor) -> torch.Tensor:
        return vector - (vector @ h) / (h @ h) * h

    def cosine(one: torch.Tensor, two: torch.Tensor) -> float:
        return float(one @ two / one.norm() / two.norm())

    def products(vector: torch.Tensor) -> Products:
        return Products(float(vector @ reference), float(vector @ vector), float(vector @ h))

    axes, orthogonal = axes_of(halves), axes_of(halves_without_entropy(halves))
    assert axes.agreement == pytest.approx(cosine(a, b))
    assert orthogonal.agreement == pytest.approx(cosine(rest(a), rest(b)))
    assert axes.toward_sharpness == pytest.approx(-cosine(reference, h))
    plain = view([products(one) for one in batches], products(batches.mean(0)), axes)
    assert plain.cosines == pytest.approx([cosine(one, reference) for one in batches])
    assert plain.mean_cosine == pytest.approx(cosine(batches.mean(0), reference))
    unit = reference / reference.norm()
    along = batches @ unit
    across = (batches - along[:, None] * unit).square().sum(1).mean()
    assert plain.snr == pytest.approx(float(along.mean() ** 2 / across))
    pairs = [float(one @ two) for at, one in enumerate(batches) for other, two in enumerate(batches) if at != other]
    clean = statistics.fmean(pairs)
    expected = float(along.mean()) / math.sqrt(clean) / math.sqrt(2 * cosine(a, b) / (1 + cosine(a, b)))
    assert plain.mean_cosine_corrected == pytest.approx(expected)
    seen = view([without_entropy(products(one), axes) for one in batches], without_entropy(products(batches.mean(0)), axes), orthogonal)
    assert seen.cosines == pytest.approx([cosine(rest(one), rest(reference)) for one in batches])


def test_rollouts_needed_are_those_with_which_the_baseline_gets_there() -> None:
    """Gradients are drawn in 3,000 dimensions: the mean 0.9 near to the reference, noise of power 40 / n."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.zeros(3000, dtype=torch.float64)
    reference[0] = 1.0
    mean = torch.zeros_like(reference)
    mean[0], mean[1] = 0.9, math.sqrt(1 - 0.81)

    def cosine(rollouts: int) -> float:
        noise = torch.randn(200, 3000, generator=generator, dtype=torch.float64) * math.sqrt(40 / rollouts / 3000)
        return float(torch.nn.functional.cosine_similarity(mean + noise, reference[None], dim=1).mean())

    few, many = cosine(8), cosine(32)
    assert rollouts_needed(many, few, 0.9, 8) == pytest.approx(32, rel=0.05)
    assert rollouts_needed(few, few, 0.9, 8) == pytest.approx(8)
    assert rollouts_needed(0.95, few, 0.9, 8) == math.inf
    assert rollouts_needed(-0.1, few, 0.9, 8) == 0
    assert math.isnan(rollouts_needed(0.3, 0.95, 0.9, 8))


def test_what_points_the_same_way_is_found_whatever_its_length() -> None:
    one = torch.tensor([[1.0, -2.0], [0.0, 0.5]])
    values = {"a": one, "b": 0.01 * one, "c": -one, "d": torch.zeros(2, 2), "e": torch.zeros(2, 2), "f": one + 0.01}
    assert alike(values) == {"a": "a", "b": "a", "c": "c", "d": "d", "e": "d", "f": "f"}
    same = [{"a": "a", "b": "a", "c": "a", "d": "a"}, {"a": "a", "b": "a", "c": "c", "d": "a"}]
    sizes = [{"a": 1.0, "b": 2.0, "c": 1.0, "d": 2.0}, {"a": 3.0, "b": 6.0, "c": 1.0, "d": 3.0}]
    assert together(same, sizes) == {"a": "a", "b": "a", "c": "c", "d": "d"}


def test_a_gradient_taken_from_a_look_alike_keeps_its_own_length() -> None:
    ascent, gradient = torch.tensor([[1.0, -2.0]]), torch.tensor([3.0, 4.0])
    assert stretched(gradient, 0.25 * ascent, ascent).tolist() == pytest.approx([0.75, 1.0])
    assert torch.equal(stretched(gradient, ascent, ascent), gradient)
    assert torch.equal(stretched(0 * gradient, 0 * ascent, 0 * ascent), 0 * gradient)


def test_an_unknown_limit_stays_unknown() -> None:
    halves, never = Halves(1.0, 1.0, 0.9, 0.0, 0.0, 1.0), Products(0.0, 0.0, 0.0)
    found = {"base": ([Products(0.3, 1.0, 0.0), Products(0.4, 1.0, 0.0)], never)}
    record = gradient_record(found, halves, baseline="base", twins={}, rollouts=64, shown=["base"], limit=math.nan)
    assert math.isnan(record["baseline_limit"])
    assert math.isnan(record["rows"][0]["rollouts_grpo_would_need"]["value"])


def test_a_record_compares_with_the_baseline_pair_by_pair() -> None:
    halves = Halves(1.0, 1.0, 0.9, 0.0, 0.0, 1.0)
    axis = math.sqrt(axes_of(halves).reference)

    def at(cosines: list[float]) -> tuple[list[Products], Products]:
        return [Products(one * axis, 1.0, 0.0) for one in cosines], Products(axis * statistics.fmean(cosines), 0.5, 0.0)

    found = {"base": at([0.3, 0.5, 0.4]), "mine": at([0.4, 0.55, 0.6]), "plain": at([0.35, 0.5, 0.5])}
    record = gradient_record(found, halves, baseline="base", twins={"mine": "plain"}, rollouts=64, shown=["base", "mine"])
    base, mine = record["rows"]
    assert [base["versus_grpo"]["mean"], base["versus_grpo"]["t"]] == [0, 0]
    assert mine["versus_grpo"] == pytest.approx(paired([0.1, 0.05, 0.2])._asdict())
    assert mine["versus_uniform_credit"]["mean"] == pytest.approx(statistics.fmean([0.05, 0.05, 0.1]))
    assert record["compared"] == 1
    assert record["half_half_cosine"] == pytest.approx(0.9)
    assert base["rollouts_grpo_would_need"]["value"] == pytest.approx(64)
    assert mine["rollouts_grpo_would_need"]["low"] < mine["rollouts_grpo_would_need"]["value"]
    assert mine["rollouts_grpo_would_need"]["value"] > 64

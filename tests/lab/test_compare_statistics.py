"""Paired differences against plain loops, hand numbers, every resample there is, and simulation."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from tokencredit.lab.compare.statistics import (
    FEW,
    UNKNOWN,
    Bounds,
    cut,
    improvement,
    outcomes,
    paired,
    points,
    power,
    resamples,
    seeds_needed,
    tail,
)
from tokencredit.stats import critical, incomplete_beta, two_sided


def every_resampled_mean(strata: Sequence[Sequence[float]]) -> list[float]:
    """The mean over bases of the mean over pairs, of every way to draw as many pairs again."""
    drawn = [list(itertools.product(stratum, repeat=len(stratum))) for stratum in strata]
    return sorted(sum(sum(one) / len(one) for one in chosen) / len(strata) for chosen in itertools.product(*drawn))


def ends(ordered: Sequence[float], sizes: Sequence[int]) -> tuple[float, float]:
    """The share that is left out is one of the normal distribution, found here by integrating its density."""
    pairs, freedom = sum(sizes), sum(sizes) - len(sizes)
    grid = np.linspace(0, critical(freedom) * math.sqrt(pairs / freedom), 200_001)
    share = 0.5 - float(np.trapezoid(np.exp(-(grid**2) / 2), grid)) / math.sqrt(2 * math.pi)
    beyond = int(share * len(ordered))
    return ordered[beyond], ordered[-1 - beyond]


@pytest.mark.parametrize("strata", [[[0.3, -0.1, 0.25]], [[1.0, 2.0, 4.0, 3.5, -1.0]], [[0.1, 0.4], [0.9, 0.2, -0.5]]])
def test_small_data_is_resampled_in_every_way(strata: list[list[float]]) -> None:
    found = paired([points(stratum) for stratum in strata])
    assert found is not None
    expected = every_resampled_mean(strata)
    assert found.intervals.bootstrap == pytest.approx(ends(expected, [len(one) for one in strata]), abs=1e-12)
    assert found.low == found.high == pytest.approx(sum(sum(one) / len(one) for one in strata) / len(strata))


def test_drawn_resamples_come_close_to_all_of_them_and_are_the_same_every_time() -> None:
    strata = [[1.0, 2.0, 4.0, 3.5, -1.0], [0.3, 0.1, 0.7, 2.0, 1.1]]
    assert 5**5 * 5**5 > 10_000
    found = paired([points(stratum) for stratum in strata])
    assert found is not None
    assert found.intervals.bootstrap == pytest.approx(ends(_exact_two(strata), (5, 5)), abs=0.06)
    resamples.cache_clear()
    assert paired([points(stratum) for stratum in strata]) == found
    counts = resamples((5, 5))
    assert {len(one) for one in counts} == {10_000}
    assert all((one.sum(1) == 5).all() for one in counts)


def _exact_two(strata: Sequence[Sequence[float]]) -> list[float]:
    one, other = (np.array(every_resampled_mean([stratum])) for stratum in strata)
    return sorted(((one[:, None] + other[None]) / 2).ravel().tolist())


def test_paired_t_by_hand() -> None:
    found = paired([points([1.0, 2.0, 3.0, 4.0])])
    assert found is not None
    assert (found.pairs, found.intervals.freedom, found.low) == (4, 3, 2.5)
    assert found.spread == pytest.approx(math.sqrt(5 / 3))
    assert found.t == pytest.approx(2.5 / (math.sqrt(5 / 3) / 2))
    assert found.intervals.t == pytest.approx((2.5 - 3.182446 * math.sqrt(5 / 3) / 2, 2.5 + 3.182446 * math.sqrt(5 / 3) / 2), abs=1e-5)


def test_bases_count_equally_and_their_spread_is_pooled() -> None:
    """Between bases the mean differs by far; within them it does not, and only that is noise."""
    found = paired([points([1.0, 1.2, 0.8]), points([5.0, 5.4])])
    assert found is not None
    assert found.low == pytest.approx((1.0 + 5.2) / 2)
    variance = (0.0 + 0.04 + 0.04 + 0.04 + 0.04) / (2 + 1)
    assert found.spread == pytest.approx(math.sqrt(variance))
    assert found.t == pytest.approx(3.1 / (math.sqrt(variance * (1 / 3 + 1 / 2)) / 2))


def test_a_run_that_never_got_there_bounds_the_mean_from_one_side() -> None:
    found = paired([[Bounds(0.1, 0.1), Bounds(0.3, math.inf), Bounds(-0.1, -0.1)]])
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.1), math.inf)
    assert found.intervals.bootstrap == (pytest.approx(ends(every_resampled_mean([[0.1, 0.3, -0.1]]), [3])[0]), math.inf)
    # What it needed at least is known of every pair: t of 0.1, 0.3, -0.1 has a lower end.
    assert found.intervals.shown == (pytest.approx(0.1 - 4.302653 * 0.2 / math.sqrt(3), abs=1e-6), math.inf)
    assert (found.t, found.spread, found.exact) == (None, None, False)
    both = paired([[Bounds(0.1, math.inf), Bounds(-math.inf, -0.2), Bounds(0.0, 0.0)]])
    assert both is not None
    assert (both.low, both.high) == both.intervals.shown == (-math.inf, math.inf)


def test_differences_that_are_all_alike_have_no_t() -> None:
    found = paired([[Bounds(0.0, 0.0)] * 3])
    assert found is not None
    assert found.intervals.shown == (0.0, 0.0)
    assert found.t is None


def test_nothing_to_compare() -> None:
    assert paired([]) is None
    assert paired([points([1.0]), []]) is None
    single = paired([points([0.5])])
    assert single is not None
    assert (single.t, single.spread, single.intervals.shown) == (None, None, UNKNOWN)
    apart = paired([points([0.5]), points([0.7])])
    assert apart is not None
    assert apart.intervals.shown == UNKNOWN


def test_as_many_are_cut_on_either_side() -> None:
    assert cut(np.arange(100.0), 0.025) == (2.0, 97.0)
    assert cut(np.arange(10.0), 0.025) == (0.0, 9.0)


def test_few_pairs_show_the_t_interval_and_more_the_bootstrap() -> None:
    for strata, by in (([list(range(8))], "t"), ([list(range(9))], "bootstrap"), ([list(range(5)), list(range(5))], "bootstrap")):
        found = paired([points([float(value) for value in stratum]) for stratum in strata])
        assert found is not None
        assert found.intervals.by == by
        assert (found.intervals.freedom < FEW) == (by == "t")
        assert found.intervals.shown == (found.intervals.t if by == "t" else found.intervals.bootstrap)


@pytest.mark.parametrize("sizes", [(9,), (12,), (8, 8), (5, 5)])
def test_intervals_hold_the_truth_as_often_as_they_say(sizes: tuple[int, ...]) -> None:
    """Plain percentiles hold it in 87 to 92 % of cases at these sizes."""
    generator, tries = np.random.default_rng(3), 1000
    held, narrow = 0, 0
    for _ in range(tries):
        strata = [generator.normal(0.3, 1.0, size=size) for size in sizes]
        found = paired([points(stratum.tolist()) for stratum in strata], draws=2000)
        assert found is not None
        held += found.intervals.bootstrap.low <= 0.3 <= found.intervals.bootstrap.high
        means = np.mean([stratum @ count.T / len(stratum) for stratum, count in zip(strata, resamples(sizes, 2000), strict=True)], axis=0)
        narrow += cut(means, 0.025).low <= 0.3 <= cut(means, 0.025).high
    assert 0.93 <= held / tries <= 0.97
    assert narrow / tries < 0.93


def test_a_large_sample_is_cut_at_the_usual_share() -> None:
    assert tail((10_000,)) == pytest.approx(0.025, abs=1e-4)
    assert tail((9,)) < tail((12,)) < 0.025


def test_probability_of_improvement_against_loops() -> None:
    ours, theirs = [[0.7, 0.9, 0.8], [0.2, 0.6]], [[0.8, 0.6, 0.7], [0.5, 0.2]]
    wins = [outcomes(points(one), points(other)) for one, other in zip(ours, theirs, strict=True)]
    found = improvement(wins)
    assert found is not None

    def by_loops(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
        each = []
        for one, other in zip(ours, theirs, strict=True):
            score = [1.0 if x > y else 0.5 if x == y else 0.0 for x in one for y in other]
            each.append(sum(score) / len(score))
        return sum(each) / len(each)

    assert found.probability == pytest.approx(by_loops(ours, theirs))
    assert (found.wins, found.pairs) == (3.0, 5)
    drawn = []
    for first in itertools.product(range(3), repeat=3):
        for second in itertools.product(range(2), repeat=2):
            chosen = (first, second)
            drawn.append(
                by_loops(
                    [[ours[base][place] for place in chosen[base]] for base in (0, 1)],
                    [[theirs[base][place] for place in chosen[base]] for base in (0, 1)],
                )
            )
    assert found.bootstrap == pytest.approx(ends(sorted(drawn), (3, 2)))


def test_winning_everything_is_no_certainty() -> None:
    found = improvement([np.ones((8, 8))])
    assert found is not None
    assert (found.probability, found.bootstrap) == (1.0, (1.0, 1.0))
    # (p-hat + z^2 / 2n - z sqrt(z^2 / 4n^2)) / (1 + z^2 / n) with p-hat 1 is 1 / (1 + z^2 / n).
    assert found.interval == pytest.approx((1 / (1 + 1.959964**2 / 8), 1.0))


def test_who_never_arrived_lost_to_who_did() -> None:
    never, early, late = Bounds(100, math.inf), Bounds(40, 40), Bounds(120, 120)
    table = outcomes([never, early, late, Bounds(100, 100)], [never, early, late])
    assert table.tolist() == [[0.5, 1.0, 0.5], [0.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("freedom", "alpha", "expected"),
    [
        (1, 0.05, 12.7062),
        (5, 0.05, 2.570582),
        (30, 0.05, 2.042272),
        (10, 0.001, 4.586894),
        (7, 0.05 / 10, 4.029337),
        (2, 0.05, 4.302653),
        (7, 0.1, 1.894579),
    ],
)
def test_critical_values_of_the_tables(freedom: int, alpha: float, expected: float) -> None:
    assert critical(freedom, alpha) == pytest.approx(expected, rel=2e-5)


def test_the_tail_is_the_integral_of_the_density() -> None:
    for freedom in (1, 2, 3, 9, 40):
        grid = np.linspace(0, 1.7, 20_001)
        constant = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
        density = constant * (1 + grid**2 / freedom) ** (-(freedom + 1) / 2)
        inside = 2 * float(np.trapezoid(density, grid))
        assert two_sided(1.7, freedom) == pytest.approx(1 - inside, abs=1e-8)
        assert two_sided(-1.7, freedom) == two_sided(1.7, freedom)
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(0.5248)


def simulated_power(effect: float, spread: float, seeds: int, strata: int, tries: int = 40_000) -> float:
    """How often a paired t test over bases sees it, by drawing."""
    generator = np.random.default_rng(0)
    drawn = generator.normal(effect, spread, size=(tries, strata, seeds))
    variance = drawn.var(2, ddof=1).mean(1)
    t = drawn.mean((1, 2)) / np.sqrt(variance / (strata * seeds))
    return float((np.abs(t) > critical(strata * (seeds - 1))).mean())


@pytest.mark.parametrize(
    ("effect", "spread", "strata"), [(0.105, 0.06, 1), (0.105, 0.08, 1), (0.05, 0.06, 2), (0.24, 0.1, 2), (-0.03, 0.06, 1)]
)
def test_seeds_needed_are_the_fewest_that_simulation_finds_enough(effect: float, spread: float, strata: int) -> None:
    seeds = seeds_needed(effect, spread, strata=strata)
    assert seeds is not None
    assert simulated_power(effect, spread, seeds, strata) > 0.8 - 0.01
    assert simulated_power(effect, spread, seeds - 1, strata) < 0.8 + 0.01
    shift = abs(effect) / spread * math.sqrt(seeds * strata)
    assert power(shift, strata * (seeds - 1)) == pytest.approx(simulated_power(effect, spread, seeds, strata), abs=0.01)


def test_no_effect_needs_no_number_of_seeds() -> None:
    assert seeds_needed(0.0, 0.1) is None
    assert seeds_needed(1e-9, 0.1) is None
    assert seeds_needed(0.1, 0.0) == 2
    assert power(0.0, 5) == pytest.approx(0.05, abs=1e-6)

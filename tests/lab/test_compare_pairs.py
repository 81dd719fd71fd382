"""From curves to numbers: areas and crossings against fine grids, pairs and their bounds by hand, the whole summary on made-up runs."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up.comparison import make_comparison, make_row
from tokencredit.lab.compare.pairs import accuracy_at, area, common_horizon, difference, on_grid, pair_up, rollouts_to, rollouts_to_target
from tokencredit.lab.compare.statistics import Bounds
from tokencredit.lab.compare.summary import summarize

CURVE = [(0, 0.2), (100, 0.6), (300, 0.5), (400, 0.9)]


def test_area_and_crossing_by_hand() -> None:
    assert area(CURVE, 400) == pytest.approx((40 + 110 + 70) / 400)
    assert area(CURVE, 200) == pytest.approx((40 + 57.5) / 200)
    assert rollouts_to(CURVE, 0.5) == pytest.approx(75)
    assert rollouts_to(CURVE, 0.7) == pytest.approx(350)
    assert (rollouts_to(CURVE, 0.2), rollouts_to(CURVE, 0.95)) == (0.0, None)


curves = st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1)), min_size=1, max_size=6).map(
    lambda steps: [(0, 0.3), *((sum(width for width, _ in steps[: place + 1]), value) for place, (_, value) in enumerate(steps))]
)


@given(curves, st.floats(0.01, 1))
def test_area_and_crossing_against_a_fine_grid(curve: list[tuple[float, float]], level: float) -> None:
    horizon = curve[-1][0]
    fine = [accuracy_at(curve, horizon * place / 2000) for place in range(2001)]
    assert area(curve, horizon) == pytest.approx((sum(fine) - (fine[0] + fine[-1]) / 2) / 2000, abs=2e-3)
    assert accuracy_at(curve, horizon) == pytest.approx(curve[-1][1])
    reached = rollouts_to(curve, level)
    if reached is None:
        assert max(value for _, value in curve) < level
    elif reached == 0:
        assert level <= 0.3
    else:
        assert accuracy_at(curve, min(reached, horizon)) == pytest.approx(level, abs=1e-9)
        assert all(accuracy_at(curve, min(reached, horizon) * place / 50) <= level + 1e-9 for place in range(50))


def test_curves_of_unlike_length_are_compared_where_all_reach() -> None:
    short = [(0, 0.2), (200, 0.6)]
    assert common_horizon([CURVE, short]) == 200
    grid, accuracy = on_grid([CURVE, short], places=3)
    assert grid == [0, 100, 200]
    assert accuracy[0] == pytest.approx([0.2, 0.6, 0.55])
    assert accuracy[1] == pytest.approx([0.2, 0.4, 0.6])


def run(curve: list[tuple[float, float]], seed: int = 0, recipe: str = "dapo") -> dict[str, object]:
    after = {"sampled": curve[-1][1], "greedy": 1.0, "pass_at_k": 1.0, "k": 8, "length": 20.0}
    return make_row(recipe, seed, curve=curve, rollouts=curve[-1][0], after=after)


FAST, SLOW, NEVER = [(0, 0.2), (100, 0.9), (400, 0.95)], [(0, 0.2), (400, 0.9)], [(0, 0.2), (400, 0.5)]


def test_log_ratios_of_rollouts_and_what_never_got_there() -> None:
    def to(name: str, ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> Bounds | None:
        return difference(name, run(ours), run(theirs), horizon=400, threshold=0.8)

    fast, slow = 100 * 6 / 7, 400 * 6 / 7
    assert to("to_threshold", FAST, SLOW) == pytest.approx((math.log(fast / slow),) * 2)
    assert to("to_threshold", NEVER, SLOW) == (pytest.approx(math.log(400 / slow)), math.inf)
    assert to("to_threshold", FAST, NEVER) == (-math.inf, pytest.approx(math.log(fast / 400)))
    assert to("to_threshold", NEVER, NEVER) == (-math.inf, math.inf)


def by_loops(ours: list[list[tuple[float, float]]], theirs: list[list[tuple[float, float]]], chosen: Sequence[int]) -> float:
    """Log ratio of the rollouts to the last accuracy of the reference's mean curve; all curves have the same places."""
    places = [rollouts for rollouts, _ in ours[0]]
    means = [[(at, sum(runs[one][place][1] for one in chosen) / len(chosen)) for place, at in enumerate(places)] for runs in (ours, theirs)]
    level = means[1][-1][1]
    times = [rollouts_to(curve, level - 1e-13) for curve in means]
    return math.inf if times[0] is None else math.log(times[0] / (times[1] or math.nan))


def test_reaching_the_reference_s_final_accuracy_against_loops() -> None:
    places = (0, 100, 250, 400)
    theirs = [list(zip(places, values, strict=True)) for values in ([0.2, 0.5, 0.6, 0.8], [0.1, 0.4, 0.9, 0.7], [0.3, 0.4, 0.5, 0.75])]
    ours = [list(zip(places, values, strict=True)) for values in ([0.2, 0.6, 0.9, 0.9], [0.1, 0.5, 0.8, 0.8], [0.3, 0.6, 0.6, 0.7])]
    found = rollouts_to_target([ours], [theirs], over_all=False)
    assert found is not None
    assert found.low == found.high == pytest.approx(by_loops(ours, theirs, (0, 1, 2)))
    drawn = sorted(by_loops(ours, theirs, chosen) for chosen in itertools.product(range(3), repeat=3))
    assert found.intervals.bootstrap == (pytest.approx(drawn[0]), drawn[-1])
    assert found.intervals.shown.high == math.inf
    two = rollouts_to_target([ours, FAST_RUNS], [theirs, SLOW_RUNS], over_all=False)
    assert two is not None
    assert two.low == pytest.approx((found.low + math.log(100 / 400)) / 2)


def test_few_seeds_that_all_get_there_have_a_t_interval() -> None:
    """Its error is the spread of all resamples, made larger by the pair that they miss."""
    theirs = [[(0, 0.2), (100, 0.4), (400, end)] for end in (0.8, 0.7, 0.75)]
    ours = [[(0, 0.2), (100, middle), (400, 0.95)] for middle in (0.4, 0.6, 0.9)]
    found = rollouts_to_target([ours], [theirs], over_all=False)
    assert found is not None
    drawn = [by_loops(ours, theirs, chosen) for chosen in itertools.product(range(3), repeat=3)]
    middle = sum(drawn) / 27
    error = math.sqrt(sum((one - middle) ** 2 for one in drawn) / 27 * 3 / 2)
    assert found.intervals.by == "t"
    assert found.intervals.shown == pytest.approx((found.low - 4.302653 * error, found.low + 4.302653 * error), rel=1e-5)
    assert found.intervals.bootstrap == pytest.approx((min(drawn), max(drawn)))
    single = rollouts_to_target([ours[:1]], [theirs[:1]], over_all=False)
    assert single is not None
    assert single.intervals.shown == (-math.inf, math.inf)


FAST_RUNS, SLOW_RUNS = [[(0, 0.2), (100, 0.9), (400, 0.95)]] * 2, [[(0, 0.2), (100, 0.4), (400, 0.9)]] * 2


def test_who_does_not_get_to_the_reference_s_final_accuracy_has_no_upper_end() -> None:
    found = rollouts_to_target([SLOW_RUNS], [FAST_RUNS], over_all=False)
    assert found is not None
    assert (found.low, found.high, found.never) == (pytest.approx(math.log(400 / 400)), math.inf, 1)
    assert rollouts_to_target([SLOW_RUNS], [[[(0, 0.5), (400, 0.3)]] * 2], over_all=False) is None


def test_the_reference_s_own_first_time_is_not_all_that_it_used() -> None:
    """A curve that is flat at the end reached its last accuracy early; over all of its rollouts anybody would look fast."""
    flat = [[(0, 0.2), (100, 0.9), (400, 0.9)]] * 2
    own, of_all = (rollouts_to_target([FAST_RUNS], [flat], over_all=over_all) for over_all in (False, True))
    assert own is not None
    assert of_all is not None
    assert own.low == own.high == pytest.approx(0.0)
    assert of_all.low == of_all.high == pytest.approx(math.log(100 / 400))


def test_a_level_that_the_base_has_already_is_no_comparison() -> None:
    assert difference("to_threshold", run(SLOW), run([(0, 0.9), (400, 0.9)]), horizon=400, threshold=0.8) is None
    assert difference("entropy", run(FAST) | {"entropy": None}, run(SLOW), horizon=400, threshold=0.8) is None


def test_only_seeds_of_both_make_pairs_and_tuning_makes_none() -> None:
    rows = [make_row("dapo", 0), make_row("dapo", 2), make_row("delta", 2), make_row("delta", 0), make_row("delta", 1)]
    rows += [make_row(name, 10_000, tuning=True) for name in ("dapo", "delta")]
    found = pair_up(rows, "delta", "dapo")
    assert [(one["recipe"], one["seed"], other["recipe"], other["seed"]) for one, other in found["steps-shift"]] == [
        ("delta", 0, "dapo", 0),
        ("delta", 2, "dapo", 2),
    ]


def test_the_summary_finds_the_speeds_that_were_put_in() -> None:
    told = make_comparison(bases=("steps-shift", "steps-sharpen"), seeds=6)
    found = {one["recipe"]: one["overall"] for one in told["summary"]["comparisons"]}
    assert set(found) == {"delta", "ntf", "random-lambda"}
    assert math.exp(found["delta"]["to_threshold"]["low"]) == pytest.approx(1 / 1.3, abs=0.05)
    assert found["delta"]["to_threshold"]["interval"][1] < 0
    assert {found[name][measure]["interval_by"] for name in found for measure in found[name]} == {"bootstrap"}
    assert found["delta"]["area"]["t_interval"] == pytest.approx(found["delta"]["area"]["bootstrap_interval"], abs=0.005)
    assert found["delta"]["area"]["t"] > 5
    assert found["delta"]["area"]["improvement"]["probability"] > 0.8
    assert found["delta"]["to_threshold"]["improvement"]["probability"] > 0.8
    assert found["delta"]["to_final"]["high"] < math.log(0.9)
    assert abs(found["random-lambda"]["area"]["low"]) < 0.01
    assert found["ntf"]["to_final"]["never"]["recipe"] == 2
    assert found["ntf"]["to_final"]["high"] is None
    assert found["ntf"]["to_final"]["t"] is None
    assert found["delta"]["area"]["pairs"] == 12
    assert {one["recipe"] for one in told["summary"]["recipes"] if one["control"]} == {"random-lambda"}


def test_the_area_is_over_the_rollouts_that_all_runs_of_a_base_cover() -> None:
    """A recipe that samples twice as much per step gets no credit for what it did with the surplus."""
    greedy = [[2 * rollouts, accuracy] for rollouts, accuracy in make_row("dapo", 0)["curve"]]
    rows = [make_row("dapo", 0), make_row("vineppo", 0, curve=greedy, rollouts=greedy[-1][0])]
    summary = summarize(rows, recipes=["dapo", "vineppo"], controls=[], bases=["steps-shift"], reference="dapo", threshold=0.8)
    assert summary["horizons"] == {"steps-shift": 8000}
    beside = summary["comparisons"][0]["overall"]
    assert beside["area"]["low"] == pytest.approx(area(greedy, 8000) - area(rows[0]["curve"], 8000))
    assert beside["area"]["low"] < -0.05
    assert math.exp(beside["rollouts"]["low"]) == pytest.approx(2)
    assert math.exp(beside["to_threshold"]["low"]) == pytest.approx(2)

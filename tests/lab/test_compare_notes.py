"""What a comparison says of chance: limits for each recipe's own pairs, how many intervals there are, how few seeds."""

import math
from typing import Any

import pytest

from made_up.comparison import make_comparison
from tokencredit.lab.compare.document import concluded
from tokencredit.lab.compare.pairs import TABLE_MEASURES
from tokencredit.lab.pages.comparison import IN_THE_FOREST
from tokencredit.stats import critical


def about(words: str, notes: list[str]) -> list[str]:
    return [note for note in notes if words in note]


def overall(told: dict[str, Any], recipe: str) -> dict[str, Any]:
    return next(one["overall"] for one in told["summary"]["comparisons"] if one["recipe"] == recipe)


def without(told: dict[str, Any], recipe: str, seeds: set[int]) -> dict[str, Any]:
    return concluded(told | {"runs": [row for row in told["runs"] if row["recipe"] != recipe or row["seed"] not in seeds]})


def test_each_recipe_is_held_against_the_limit_of_its_own_pairs() -> None:
    told = without(make_comparison(seeds=10), "delta", set(range(3, 10)))
    limits = {name: overall(told, name)["area"]["bonferroni_t"] for name in ("delta", "ntf")}
    assert limits["delta"] == pytest.approx(critical(2, 0.025))
    assert limits["ntf"] == pytest.approx(critical(9, 0.025))
    t = overall(told, "delta")["area"]["t"]
    assert t > limits["delta"]
    note = about("Bonferroni", told["notes"])[0]
    assert f"beyond |t| {limits['ntf']:.1f} to {limits['delta']:.1f} (fewer pairs, higher limit)" in note
    assert note.endswith("Beyond it: delta, ntf.")
    # A difference that is beyond the limit of ten pairs and not of three.
    for row in told["runs"]:
        if row["recipe"] == "delta" and row["seed"] == 0:
            row["curve"] = [[rollouts, accuracy - 0.035] for rollouts, accuracy in row["curve"]]
    again = concluded(told)
    assert limits["ntf"] < overall(again, "delta")["area"]["t"] < limits["delta"]
    assert about("Bonferroni", again["notes"])[0].endswith("Beyond it: ntf.")


def test_the_number_of_intervals_is_told() -> None:
    assert TABLE_MEASURES == IN_THE_FOREST
    notes = make_comparison(seeds=10)["notes"]
    assert about("make 12 intervals of 95 %, of which about 1 would", notes)
    assert not about("intervals of 95 %", make_comparison(("dapo", "delta", "random-lambda"), seeds=10)["notes"])


@pytest.mark.parametrize(("seeds", "words"), [(1, "One seed per base"), (2, "Few pairs (2)"), (8, "Few pairs (8)"), (9, None)])
def test_few_seeds_are_told(seeds: int, words: str | None) -> None:
    told = make_comparison(seeds=seeds)
    notes = [*about("Few pairs", told["notes"]), *about("One seed", told["notes"])]
    assert [note.startswith(words or "nothing") for note in notes] == ([] if words is None else [True])
    area = overall(told, "delta")["area"]
    assert (area["interval"] == [None, None]) == (seeds == 1)
    assert area["interval_by"] == ("t" if seeds < 9 else "bootstrap")


def test_a_control_that_differs_by_no_more_than_two_pairs_can_is_no_alarm() -> None:
    """With one degree of freedom |t| is above 2 in three of ten comparisons."""
    told = make_comparison(seeds=2)
    for row in told["runs"]:
        if row["recipe"] == "random-lambda":
            theirs = next(one for one in told["runs"] if (one["recipe"], one["seed"]) == ("dapo", row["seed"]))
            shift = 0.02 + 0.01 * row["seed"]
            row["curve"] = [[rollouts, accuracy + shift] for rollouts, accuracy in theirs["curve"]]
    again = concluded(told)
    assert 2 < overall(again, "random-lambda")["area"]["t"] < 12.7
    assert not about("itself differs", again["notes"])


def test_a_control_that_differs_is_an_alarm() -> None:
    told = make_comparison(seeds=9)
    for row in told["runs"]:
        if row["recipe"] == "random-lambda":
            row["curve"] = [[rollouts, accuracy + 0.1] for rollouts, accuracy in row["curve"]]
    again = concluded(told)
    assert about("The A/A control random-lambda itself differs", again["notes"])
    assert math.isfinite(overall(again, "random-lambda")["area"]["t"])


@pytest.mark.parametrize(("length", "noted"), [(5.0, True), (9.9, True), (10.0, False), (20.0, False), (40.0, False), (41.0, True)])
def test_another_length_of_responses_is_told(length: float, noted: bool) -> None:
    """Reported runs alone: what a rate did in tuning is over."""
    told = make_comparison(seeds=2)
    for row in told["runs"]:
        if row["recipe"] == "delta":
            row["after"] = row["after"] | {"length": length + (1 if row["seed"] else -1)}
    tuned = [{**row, "tuning": True, "after": row["after"] | {"length": 999.0}} for row in told["runs"]]
    again = concluded(told | {"runs": [*told["runs"], *tuned]})
    lengths = {one["recipe"]: one["length"]["after"]["mean"] for one in again["summary"]["recipes"]}
    assert lengths == {"dapo": 20.0, "delta": length, "ntf": 20.0, "random-lambda": 20.0}
    found = about("tokens a response", again["notes"])
    assert len(found) == noted
    assert all(note.startswith(f"delta on steps-shift went from 20 to {length:,.0f} tokens") for note in found)

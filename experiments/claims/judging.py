"""The rule that turns paired differences into a verdict. Nothing here knows which claim it judges.

A test is judged by the 95 % t interval of its contrast, taken seed by seed within each base and averaged over bases (the bootstrap
interval where a run never reached the threshold, since then there is no t). A claim is reproduced here if every deciding test comes out as
claimed; it is not testable here if one of them could not be taken; otherwise it is not reproduced here. "The other way round" says that the
interval excludes what is claimed, "not told apart" that it does not.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from claims.declaration import Claim, Expected, Study, Test
from claims.measures import CEILING, MEASURES, measured
from claims.planning import place
from claims.settings import SETTINGS
from tokencredit.lab.compare.pairs import common_horizon
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.statistics import Bounds, Paired, paired

Outcome = Literal["as claimed", "the other way round", "not told apart", "not testable"]
Verdict = Literal["reproduced here", "not reproduced here", "not testable here"]
TOP = 0.99


class Judged(NamedTuple):
    test: Test
    found: Paired | None
    by_base: dict[str, Paired | None]
    outcome: Outcome
    why: str = ""

    @property
    def interval(self) -> Bounds | None:
        return None if self.found is None else interval_of(self.found)


def interval_of(found: Paired) -> Bounds:
    return found.intervals.t or found.intervals.bootstrap


def outcome_of(interval: Bounds, expected: Expected, margin: float = 0.0) -> Outcome:
    """Where the interval lies: on the claimed side, on the other, or across the border between them."""
    low, high = (-interval.high, -interval.low) if expected == "less" else interval
    border = -margin if expected == "no worse" else 0.0
    if low > border:
        return "as claimed"
    return "the other way round" if high < border else "not told apart"


def verdict(outcomes: Sequence[Outcome]) -> Verdict:
    """Of the deciding tests of a claim."""
    if not outcomes or "not testable" in outcomes:
        return "not testable here"
    return "reproduced here" if set(outcomes) == {"as claimed"} else "not reproduced here"


def contrast(weights: Mapping[str, float], found: Mapping[str, Bounds], *, ratio: bool) -> Bounds | None:
    """The weighted sum as an interval; of logs for a ratio. None where a recipe has no number."""
    if any(recipe not in found for recipe in weights) or (ratio and any(found[recipe].low <= 0 for recipe in weights)):
        return None
    low = high = 0.0
    for recipe, weight in weights.items():
        ends = [math.log(end) if ratio and math.isfinite(end) else end for end in found[recipe]]
        small, large = (weight * end for end in (ends if weight > 0 else reversed(ends)))
        low, high = low + small, high + large
    return Bounds(low, high)


def judge(test: Test, rows: Sequence[Row], study: Study) -> Judged:
    places = [place(test.setting, model) for model in SETTINGS[test.setting].models]
    strata = {base: strata_of(test, [row for row in rows if row["base"] == base], study) for base in places}
    by_base = {base: paired([own]) if len(own) > 1 else None for base, own in strata.items()}
    if any(one is None for one in by_base.values()):
        return Judged(test, None, by_base, "not testable", "fewer than two pairs")
    found = paired(list(strata.values()))
    assert found is not None
    if test.measure in CEILING and at_top(test, rows, places, study):
        return Judged(test, found, by_base, "not testable", f"all above {TOP:.0%}")
    if math.isinf(found.low) and math.isinf(found.high):
        return Judged(test, found, by_base, "not testable", "too few runs got there")
    return Judged(test, found, by_base, outcome_of(interval_of(found), test.expected, test.margin))


def judge_claim(claim: Claim, rows: Sequence[Row], study: Study) -> tuple[list[Judged], Verdict]:
    judged = [judge(test, rows, study) for test in claim.tests]
    return judged, verdict([one.outcome for one in judged if one.test.decides])


def horizon_of(rows: Sequence[Row], study: Study, setting: str) -> float:
    """Rollouts that all runs of the study cover from this base."""
    return common_horizon([row["curve"] for row in rows if row["recipe"] in study.arms[setting]])


def strata_of(test: Test, rows: Sequence[Row], study: Study) -> list[Bounds]:
    """One contrast per seed that has all its runs."""
    if not rows:
        return []
    horizon, ratio = horizon_of(rows, study, test.setting), MEASURES[test.measure].kind == "ratio"
    by_seed: dict[int, dict[str, Bounds]] = {}
    for row in rows:
        value = measured(test.measure, row, horizon=horizon, threshold=study.threshold)
        if row["recipe"] in test.weights and value is not None:
            by_seed.setdefault(row["seed"], {})[row["recipe"]] = value
    contrasts = (contrast(test.weights, found, ratio=ratio) for _, found in sorted(by_seed.items()))
    return [one for one in contrasts if one is not None]


def at_top(test: Test, rows: Sequence[Row], places: Sequence[str], study: Study) -> bool:
    """Every run that is compared has solved next to everything."""
    chosen = [row for row in rows if row["base"] in places and row["recipe"] in test.weights]
    found = [measured(test.measure, row, horizon=horizon_of([row], study, test.setting), threshold=study.threshold) for row in chosen]
    return all(value is not None and value.low > TOP for value in found)

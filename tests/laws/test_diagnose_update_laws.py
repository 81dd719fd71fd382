"""What must hold for flips, effect, cancellation, drift and tax, whatever was measured; and the wrong versions each law rejects."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_diagnose_update import CANCELLATION, DRIFT, EFFECT, FLIPS, TAX, findings_with
from oracle.update_cases import random_evidence, random_table
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding


class Case(NamedTuple):
    table: TokenTable
    change: Tensor
    other: Tensor
    partly: Tensor
    """Of these evidences this one is NaN here and there."""
    order: Tensor

    def select(self, places: Tensor) -> "Case":
        return Case(self.table.select(places), *(value[places] for value in self[1:4]), order=torch.arange(len(places)))


def make_case(seed: int, rows: int) -> Case:
    table = random_table(seed, rows=rows)
    evidence = [random_evidence(table, seed + 1), random_evidence(table, seed + 2), random_evidence(table, seed + 3, unknown=0.2)]
    return Case(table, *evidence, order=torch.randperm(len(table), generator=torch.Generator().manual_seed(seed)))


cases = st.builds(make_case, seed=st.integers(0, 2**30), rows=st.integers(2, 14))
factors = st.sampled_from([0.25, 3.0, 1e3])


def assert_same(one: Any, two: Any) -> None:
    """Words to the letter, numbers to rounding."""
    words, numbers = ([{k: v for k, v in row.items() if isinstance(v, str) == text} for row in (one, two)] for text in (True, False))
    assert words[0] == words[1]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, abs=1e-12, nan_ok=True)


def assert_same_finding(one: Finding, two: Finding) -> None:
    """Up to the order of rows whose order is that of appearance."""

    def by_labels(row: Any) -> str:
        return str([value for value in row.values() if not isinstance(value, float)])

    assert_same(one.numbers, two.numbers)
    assert one.tables.keys() == two.tables.keys()
    for name in one.tables:
        left, right = (sorted(finding.tables[name], key=by_labels) for finding in (one, two))
        assert len(left) == len(right)
        for row, twin in zip(left, right, strict=True):
            assert_same(row, twin)


def all_findings(code: Any, case: Case) -> list[Finding]:
    predicted = {"predicted_first": case.other, "change_first": case.partly, "predicted_step": case.other, "change_step": case.change}
    return [
        code.flips(case.table, case.partly, case.change),
        code.effect(case.table, **predicted, raw=case.other, method="law"),
        code.cancellation(case.table, case.change, case.other, case.other, case.partly).finding,
        code.drift(case.table, case.change),
        code.tax(case.table, case.change, format_classes={"copy"}, value_before=case.partly, value_after=case.other),
    ]


def agreement(code: Any, case: Case, predicted: Tensor, measured: Tensor) -> dict[str, float]:
    given = {"predicted_first": None, "change_first": None, "predicted_step": predicted, "change_step": measured}
    return dict(code.effect(case.table, **given, method="law").numbers)


def tax(code: Any, case: Case, kl: Tensor, **knobs: Any) -> dict[str, float]:
    return dict(code.tax(case.table, kl, **{"format_classes": {"copy"}, **knobs}).numbers)


@for_all(cases)
def the_order_of_tokens_does_not_matter(code, case):
    for one, two in zip(all_findings(code, case), all_findings(code, case.select(case.order)), strict=True):
        assert_same_finding(one, two)


@for_all(cases)
def the_unmeasured_is_left_out(code, case):
    known = case.select((~case.partly.isnan()).nonzero()[:, 0])
    moved, kept = (dict(code.flips(one.table, None, one.partly).numbers) for one in (case, known))
    without_side = moved.pop("without_side"), kept.pop("without_side")
    assert without_side[0] >= without_side[1]
    assert_same(moved, kept)
    assert_same(agreement(code, case, case.other, case.partly), agreement(code, known, known.other, known.partly))
    values = [{"value_before": one.partly, "value_after": one.other} for one in (case, known)]
    whole, part = tax(code, case, case.change, **values[0]), tax(code, known, known.change, **values[1])
    assert_same(
        {name: whole[f"measured/{name}"] for name in ("tokens", "kl")}, {name: part[f"measured/{name}"] for name in ("tokens", "kl")}
    )


# --- flips


@for_all(cases)
def turning_advantages_and_changes_round_exchanges_the_sides(code, case):
    turned = replace(case.table, advantage=-case.table.advantage)
    one, two = code.flips(case.table, None, case.change).numbers, code.flips(turned, None, -case.change).numbers
    for band in ("", "band/"):
        assert_same({"flip": one[f"step/{band}positive/flip"]}, {"flip": two[f"step/{band}negative/flip"]})
        assert_same({"flip": one[f"step/{band}negative/flip"]}, {"flip": two[f"step/{band}positive/flip"]})
        assert_same({"boosted": one[f"step/{band}positive/boosted"]}, {"boosted": two[f"step/{band}negative/suppressed"]})


@for_all(cases)
def every_measured_token_rose_fell_or_stayed(code, case):
    finding = code.flips(case.table, case.partly, case.change.round(decimals=4), dead_band=2e-4)
    for rows in finding.tables.values():
        for row in rows:
            if row["tokens"]:
                assert row["boosted"] + row["suppressed"] + row["unchanged"] == pytest.approx(1)


@for_all(cases, factors)
def changes_and_band_may_be_in_any_unit(code, case, factor):
    one = code.flips(case.table, None, case.change, dead_band=1e-3).numbers
    two = code.flips(case.table, None, factor * case.change, dead_band=factor * 1e-3).numbers
    assert_same({**one, "dead_band": 0.0}, {**two, "dead_band": 0.0})


@for_all(cases)
def tokens_without_advantage_do_not_matter(code, case):
    none = case.table.advantage == 0
    one, two = (code.flips(case.table, None, case.change.where(~none, value)).numbers for value in (9.0, -9.0))
    assert_same(one, two)


# --- effect


@for_all(cases, factors)
def agreement_has_no_unit_and_the_slope_tells_scale(code, case, factor):
    large = case.change + case.change.sign()
    one = agreement(code, case, case.other, large)
    both = agreement(code, case, factor * case.other, factor * large)
    assert_same(one, both)
    assert_same(
        {**one, "step/slope": 0.0, "step/error": 0.0},
        {**agreement(code, case, factor * case.other, large), "step/slope": 0.0, "step/error": 0.0},
    )
    assert_same({"slope": one["step/slope"]}, {"slope": factor * agreement(code, case, factor * case.other, large)["step/slope"]})


@for_all(cases)
def a_perfect_prediction_is_perfect(code, case):
    found = agreement(code, case, case.change, case.change)
    for name, best in (("correlation", 1.0), ("slope", 1.0), ("sign", 1.0), ("error", 0.0)):
        assert math.isnan(found[f"step/{name}"]) or found[f"step/{name}"] == pytest.approx(best)
    assert found["step/slope"] == pytest.approx(1.0) or not case.change.any()


@for_all(cases)
def the_sign_of_what_hardly_moved_is_not_judged(code, case):
    hardly = case.change.abs() <= 1e-4
    turned = case.other.where(~hardly, -case.other)
    assert_same(
        {"sign": agreement(code, case, case.other, case.change)["step/sign"]},
        {"sign": agreement(code, case, turned, case.change)["step/sign"]},
    )


# --- cancellation


def halves(code: Any, case: Case) -> Any:
    return code.cancellation(case.table, case.change, case.other, case.change, case.other)


@for_all(cases)
def cancellation_lies_between_0_and_1(code, case):
    result = halves(code, case)
    told = result.per_token[~result.per_token.isnan()]
    assert bool(((told >= 0) & (told <= 1)).all())
    assert torch.equal(result.per_token.isnan(), (case.change == 0) & (case.other == 0))
    assert math.isnan(result.finding.numbers["mass"]) or 0 <= result.finding.numbers["mass"] <= 1


@for_all(cases, st.sampled_from([-2.0, 0.5, 64.0]))
def sides_may_be_exchanged_and_scaled(code, case, factor):
    one = halves(code, case)
    two = code.cancellation(case.table, factor * case.other, factor * case.change, case.change, case.other)
    torch.testing.assert_close(one.per_token, two.per_token, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert_same({"mass": one.finding.numbers["mass"]}, {"mass": two.finding.numbers["mass"]})


@for_all(cases)
def opposites_cancel_and_one_side_alone_does_not(code, case):
    pushed = case.change != 0
    opposite = code.token_cancellation(case.change, -case.change)
    assert bool((opposite[pushed] == 1).all())
    for sides in ((case.change, 0 * case.change), (0 * case.change, case.change), (case.change, 3 * case.change)):
        assert bool((code.token_cancellation(*sides)[pushed] == 0).all())


@for_all(cases)
def the_whole_lies_between_its_parts(code, case):
    finding = halves(code, case).finding
    for table in ("by_class", "by_group", "by_vocabulary"):
        column = "cancellation" if table == "by_vocabulary" else "mass"
        parts = [row[column] for row in finding.tables[table] if not math.isnan(row[column])]
        assert not parts or min(parts) - 1e-9 <= finding.numbers["mass"] <= max(parts) + 1e-9


@for_all(cases)
def where_splitting_changes_nothing_nothing_is_lost(code, case):
    outside = case.table.optimizer_step < 0
    rubbish = [value.where(~outside, 7.0) for value in (case.change, case.other)]
    finding = code.cancellation(case.table, case.change, case.other, *rubbish).finding
    assert finding.numbers["mini/tokens"] == int((~outside).sum())
    for row in (finding.numbers, *finding.tables["by_class"], *finding.tables["by_group"]):
        for lost in (value for name, value in row.items() if name.startswith("lost")):
            assert lost == 0 or math.isnan(lost)


@for_all(cases)
def turning_both_sides_round_exchanges_amplified_and_damped(code, case):
    turned = code.cancellation(case.table, -case.change, -case.other, case.change, case.other)
    other = {"amplified": "damped", "damped": "amplified"}
    one, two = (result.finding.tables["amplified_and_damped"] for result in (halves(code, case), turned))
    assert {(row["direction"], row["text"]) for row in one} == {(other[row["direction"]], row["text"]) for row in two}
    assert len(one) == len(two)


# --- drift


@for_all(cases)
def only_differences_within_a_group_matter(code, case):
    shift = case.table.group.double() * (case.table.position == 0)
    assert_same(code.drift(case.table, case.change).numbers, code.drift(case.table, case.change + shift).numbers)


@for_all(cases)
def a_response_moves_by_the_sum_of_its_tokens(code, case):
    total = torch.zeros(int(case.table.row.max()) + 1, dtype=torch.float64).index_add_(0, case.table.row, case.change)
    at_once = total[case.table.row].where(case.table.position == 0, 0.0)
    assert_same(code.drift(case.table, case.change).numbers, code.drift(case.table, at_once).numbers)


@for_all(cases)
def moving_by_the_score_is_wholly_wanted(code, case):
    change = case.table.score.where(case.table.position == 0, 0.0)
    numbers = code.drift(case.table, change).numbers
    assert numbers["equal/absolute"] == 0 or not numbers["equal/pairs"]
    assert not numbers["unequal/pairs"] or numbers["unequal/mean"] == numbers["unequal/absolute"] > 0


@for_all(cases)
def groups_add_up(code, case):
    parts = [case.table.group == group for group in case.table.group.unique()]
    alone = [code.drift(case.table.select(part.nonzero()[:, 0]), case.change[part]).numbers for part in parts]
    whole = code.drift(case.table, case.change).numbers
    for name in ("responses", "equal/pairs", "equal/groups", "unequal/pairs", "unequal/groups"):
        assert whole[name] == sum(numbers[name] for numbers in alone)


@for_all(cases)
def writing_everything_twice_makes_four_pairs_of_one(code, case):
    again = case.table.select(torch.arange(len(case.table)).repeat(2))
    again = replace(again, row=torch.cat([case.table.row, case.table.row + 100]))
    once, twice = code.drift(case.table, case.change).numbers, code.drift(again, case.change.repeat(2)).numbers
    for kind in ("equal", "unequal"):
        assert twice[f"{kind}/pairs"] == 4 * once[f"{kind}/pairs"]
        assert_same({"rms": once[f"{kind}/rms"]}, {"rms": twice[f"{kind}/rms"]})


# --- tax


@for_all(cases, factors)
def shares_have_no_unit_and_lie_between_0_and_1(code, case, factor):
    one, two = tax(code, case, case.change), tax(code, case, factor * case.change)
    assert_same({**one, "kl/mean": 0.0}, {**two, "kl/mean": 0.0})
    assert all(0 <= value <= 1 + 1e-12 or math.isnan(value) for name, value in one.items() if name.endswith(("/kl", "/tokens")))


@for_all(cases)
def any_is_at_least_each_and_at_most_all(code, case):
    found = tax(code, case, case.change)
    for what in ("tokens", "kl"):
        each = [found[f"{name}/{what}"] for name in ("format", "certain", "dead")]
        assert math.isnan(found[f"any/{what}"]) or max(each) - 1e-12 <= found[f"any/{what}"] <= sum(each) + 1e-12


@for_all(cases)
def a_gain_and_a_loss_of_value_count_alike(code, case):
    forth, back = (
        tax(code, case, case.change, value_before=one, value_after=two)
        for one, two in ((case.partly, case.other), (case.other, case.partly))
    )
    assert_same(forth, back)


@for_all(cases)
def ungraded_responses_say_nothing_about_their_group(code, case):
    graded = ~case.table.score.isnan()
    kept = case.select(graded.nonzero()[:, 0])
    whole, part = tax(code, case, case.change.where(graded, 0.0)), tax(code, kept, kept.change)
    assert_same({"kl": whole["dead/kl"]}, {"kl": part["dead/kl"]})


LAWS: dict[Law, tuple[str, ...]] = {
    the_order_of_tokens_does_not_matter: ("tokens in the order of the table",),
    the_unmeasured_is_left_out: ("the unmeasured did not move", "unmeasured tokens count", "unknown value is value"),
    turning_advantages_and_changes_round_exchanges_the_sides: ("a flip is a fall", "the band is ignored"),
    every_measured_token_rose_fell_or_stayed: ("a change of the band is neither", "the unmeasured did not move"),
    changes_and_band_may_be_in_any_unit: ("the band is ignored",),
    tokens_without_advantage_do_not_matter: ("no advantage is a side",),
    agreement_has_no_unit_and_the_slope_tells_scale: ("slope of predicted on measured", "error in nats"),
    a_perfect_prediction_is_perfect: ("the error is all that moved",),
    the_sign_of_what_hardly_moved_is_not_judged: ("signs of noise",),
    cancellation_lies_between_0_and_1: ("net without size", "mass of one side"),
    sides_may_be_exchanged_and_scaled: ("net without size", "mass of one side"),
    opposites_cancel_and_one_side_alone_does_not: ("net without size", "mass of one side"),
    the_whole_lies_between_its_parts: ("tokens cancel one another",),
    where_splitting_changes_nothing_nothing_is_lost: (
        "compared over other tokens",
        "compared over other tokens in the mean",
        "no step is a step",
    ),
    turning_both_sides_round_exchanges_amplified_and_damped: ("the damped are amplified",),
    only_differences_within_a_group_matter: ("log-prob, not log-odds", "only the last token", "all prompts are one"),
    a_response_moves_by_the_sum_of_its_tokens: ("only the last token",),
    moving_by_the_score_is_wholly_wanted: ("worse minus better", "log-prob, not log-odds"),
    groups_add_up: ("all prompts are one",),
    writing_everything_twice_makes_four_pairs_of_one: ("the same response is a pair",),
    shares_have_no_unit_and_lie_between_0_and_1: ("KL, not a share of it", "rounding below 0 counts"),
    any_is_at_least_each_and_at_most_all: ("nil by every yardstick",),
    a_gain_and_a_loss_of_value_count_alike: ("a loss of value is nil",),
    ungraded_responses_say_nothing_about_their_group: ("the ungraded are alive",),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, findings_with, FLIPS, EFFECT, CANCELLATION, DRIFT, TAX
)

"""Tax against loops, and where the share is known on paper."""

import math
from dataclasses import replace

import pytest
import torch

from oracle.update_cases import make_table, random_evidence, random_table
from tokencredit.diagnose.table import TokenTable
from tokencredit.diagnose.tax import tax

Same = {"nan_ok": True, "rel": 1e-10, "abs": 1e-12}


def naive_dead(table: TokenTable, at: int) -> bool:
    group = [b for b in range(len(table)) if int(table.group[b]) == int(table.group[at])]
    scores = {float(table.score[b]) for b in group}
    return len({score for score in scores if not math.isnan(score)}) <= 1 and all(float(table.credit[b]) == 0 for b in group)


def naive_share(kl: list[float], where: list[bool], among: list[bool]) -> dict[str, float]:
    tokens = chosen = 0
    total = nil = 0.0
    for value, inside, counted in zip(kl, where, among, strict=True):
        if not counted or math.isnan(value):
            continue
        tokens += 1
        total += max(value, 0.0)
        if inside:
            chosen += 1
            nil += max(value, 0.0)
    return {
        "tokens": chosen,
        "token_share": chosen / tokens if tokens else math.nan,
        "kl_share": nil / total if total else math.nan,
        "mean_kl": nil / chosen if chosen else math.nan,
    }


@pytest.mark.parametrize("seed", range(8))
def test_every_number_and_table_equals_a_loop(seed: int) -> None:
    table = random_table(seed, rows=10)
    untaught = table.group == table.group[0] if seed % 2 else table.score.isnan() | (table.group == table.group[-1])
    table = replace(table, credit=table.credit.where(~untaught, 0.0))
    kl = random_evidence(table, seed, unknown=0.1)
    before, after = (torch.rand(len(table), generator=torch.Generator().manual_seed(seed + k), dtype=torch.float64) for k in (1, 2))
    before[::3] = math.nan
    after[1::7] = math.nan
    formats = {"separator", "never seen"}
    finding = tax(table, kl, format_classes=formats, value_before=before, value_after=after, nil=0.3)
    every = range(len(table))
    where = {
        "format": [table.token_class[at] in formats for at in every],
        "certain": [math.exp(float(table.logp[at])) >= 0.99 for at in every],
        "dead": [naive_dead(table, at) for at in every],
        "measured": [abs(float(after[at] - before[at])) < 0.3 for at in every],
    }
    where["any"] = [where["format"][at] or where["certain"][at] or where["dead"][at] for at in every]
    known = [not math.isnan(float(after[at] + before[at])) for at in every]
    rows = {row["yardstick"]: row for row in finding.tables["yardsticks"]}
    assert rows.keys() == where.keys()
    for name, inside in where.items():
        expected = naive_share(kl.tolist(), inside, known if name == "measured" else [True] * len(table))
        assert {key: rows[name][key] for key in expected} == pytest.approx(expected, **Same)
        assert finding.numbers[f"{name}/tokens"] == pytest.approx(expected["token_share"], **Same)
        assert finding.numbers[f"{name}/kl"] == pytest.approx(expected["kl_share"], **Same)
    for row in finding.tables["by_class"]:
        expected = naive_share(kl.tolist(), [name == row["token_class"] for name in table.token_class], [True] * len(table))
        assert {key: row[key] for key in expected} == pytest.approx(expected, **Same)
    moved = [max(value, 0.0) for value in kl.tolist() if not math.isnan(value)]
    assert finding.numbers["kl/mean"] == pytest.approx(sum(moved) / len(moved), **Same)
    assert finding.numbers["tokens"] == len(moved)


def mixed_table(**other: list) -> TokenTable:
    """A live group (0) with a separator and a certain token, and a dead one (1)."""
    columns = {"advantage": [1.0, 1.0, -1.0, -1.0, 0.0, 0.0], "score": [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]}
    columns |= {"token_class": ["copy", "separator", "copy", "copy", "copy", "copy"]} | other
    return make_table(
        row=[0, 0, 1, 1, 2, 3],
        group=[0, 0, 0, 0, 1, 1],
        token=[0] * 6,
        probability=[0.5, 0.6, 0.995, 0.7, 0.3, 0.3],
        **columns,
    )


KL = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.15, 0.05])


def test_shares_known_on_paper() -> None:
    """KL sums to 1: separator 0.2, certain 0.1, dead 0.2; together 0.5 on 4 of 6 tokens."""
    finding = tax(mixed_table(), KL, format_classes={"separator"})
    expected = {"format/kl": 0.2, "certain/kl": 0.1, "dead/kl": 0.2, "any/kl": 0.5, "any/tokens": 4 / 6, "dead/tokens": 2 / 6}
    assert {name: finding.numbers[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert "measured/kl" not in finding.numbers
    assert "50.0 % by 'any'" in finding.note
    assert "66.7 % of tokens" in finding.note


def test_a_token_nil_twice_is_counted_once() -> None:
    table = mixed_table(token_class=["copy", "copy", "separator", "copy", "separator", "copy"])
    numbers = tax(table, KL, format_classes={"separator"}).numbers
    assert numbers["format/kl"] == pytest.approx(0.25)
    assert numbers["any/kl"] == pytest.approx(0.1 + 0.2)


def test_without_format_classes_the_yardstick_is_absent() -> None:
    finding = tax(mixed_table(), KL, format_classes=set())
    assert "format/kl" not in finding.numbers
    assert [row["yardstick"] for row in finding.tables["yardsticks"]] == ["certain", "dead", "any"]
    assert finding.numbers["any/kl"] == pytest.approx(0.3)


def test_measured_counts_only_tokens_whose_value_is_known() -> None:
    before = torch.tensor([0.2, 0.5, math.nan, 0.5, math.nan, 0.1])
    after = torch.tensor([0.9, 0.5, 0.5, 0.54, 0.1, math.nan])
    finding = tax(mixed_table(), KL, format_classes=set(), value_before=before, value_after=after)
    assert finding.numbers["measured/tokens"] == pytest.approx(2 / 3)
    assert finding.numbers["measured/kl"] == pytest.approx(0.3 / 0.7)
    narrow = tax(mixed_table(), KL, format_classes=set(), value_before=before, value_after=after, nil=0.01)
    assert narrow.numbers["measured/kl"] == pytest.approx(0.2 / 0.7)


def test_ungraded_responses_do_not_make_a_group_live() -> None:
    untaught = [0.0, 0.0, 0.0, 0.0, 1.0, -1.0]
    alone = tax(mixed_table(advantage=untaught, score=[1.0, 1.0, math.nan, math.nan, 1.0, 0.0]), KL, format_classes=set()).numbers
    assert alone["dead/kl"] == pytest.approx(0.8)
    none = tax(mixed_table(score=[1.0, 1.0, 0.0, 0.0, math.nan, math.nan]), KL, format_classes=set()).numbers
    assert none["dead/kl"] == pytest.approx(0.2)


def test_a_group_that_was_taught_is_not_dead_though_its_scores_are_alike() -> None:
    """Single responses, batch baselines and process credit teach from groups without a contrast."""
    finding = tax(mixed_table(advantage=[1.0, 1.0, -1.0, -1.0, 0.0, 0.3]), KL, format_classes=set())
    assert finding.numbers["dead/kl"] == 0
    assert finding.numbers["dead/tokens"] == 0


def test_where_nothing_moved_no_tax_is_told() -> None:
    finding = tax(mixed_table(), torch.tensor([0.0, -1e-9, 0.0, 0.0, 0.0, -1e-8]), format_classes={"separator"})
    assert math.isnan(finding.numbers["any/kl"])
    assert finding.numbers["any/tokens"] == pytest.approx(4 / 6)
    assert "the tax is unknown" in finding.note


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"nil is 0.0; it must be above 0"):
        tax(mixed_table(), KL, format_classes=set(), nil=0.0)
    with pytest.raises(ValueError, match=r"kl is \(5,\) but the table holds 6 tokens"):
        tax(mixed_table(), KL[:5], format_classes=set())

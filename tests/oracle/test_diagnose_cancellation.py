"""Cancellation against nested loops, and on a linear-softmax policy where both sides' effects are known on paper."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oracle.update_cases import TEXTS, Batch, make_table, random_evidence, random_table
from tokencredit.diagnose.cancellation import cancellation, token_cancellation
from tokencredit.diagnose.table import TokenTable

Same = {"nan_ok": True, "rel": 1e-10, "abs": 1e-12}
Sides = tuple[list[float], list[float]]


def naive_summary(sides: Sides, places: list[int]) -> tuple[float, float]:
    net = mass = 0.0
    ratios = []
    for at in places:
        positive, negative = sides[0][at], sides[1][at]
        size = abs(positive) + abs(negative)
        net += abs(positive + negative)
        mass += size
        if size:
            ratios.append(1 - abs(positive + negative) / size)
    return (1 - net / mass if mass else math.nan), (sum(ratios) / len(ratios) if ratios else math.nan)


def naive(table: TokenTable, whole: Sides, mini: Sides, keep: Callable[[int], bool] = lambda _: True) -> dict[str, float]:
    known = [at for at in range(len(table)) if keep(at) and not math.isnan(whole[0][at] + whole[1][at])]
    in_step = [at for at in known if int(table.optimizer_step[at]) >= 0 and not math.isnan(mini[0][at] + mini[1][at])]
    mass, mean = naive_summary(whole, known)
    batch_mass, batch_mean = naive_summary(whole, in_step)
    mini_mass, mini_mean = naive_summary(mini, in_step)
    return {
        "tokens": len(known),
        "mass": mass,
        "mean": mean,
        "mini_tokens": len(in_step),
        "mini_mass": mini_mass,
        "mini_mean": mini_mean,
        "lost_mass": batch_mass - mini_mass,
        "lost_mean": batch_mean - mini_mean,
    }


@pytest.mark.parametrize("seed", range(6))
def test_every_number_and_table_equals_a_loop(seed: int) -> None:
    table = random_table(seed)
    four = [random_evidence(table, 50 * seed + k, unknown=0.08 if k == 3 else 0.0) for k in range(4)]
    four[0][::4] = -four[1][::4]
    result = cancellation(table, *four)
    whole, mini = (four[0].tolist(), four[1].tolist()), (four[2].tolist(), four[3].tolist())
    tables = result.finding.tables
    assert dict(result.finding.numbers) == pytest.approx(
        {name.replace("_", "/"): value for name, value in naive(table, whole, mini).items()}, **Same
    )
    for part in set(table.token_class):
        (row,) = [r for r in tables["by_class"] if r["token_class"] == part]
        expected = naive(table, whole, mini, lambda at, part=part: table.token_class[at] == part)
        assert {key: row[key] for key in expected} == pytest.approx(expected, **Same)
    assert [row["group"] for row in tables["by_group"]] == sorted(set(table.group.tolist()))
    for row in tables["by_group"]:
        expected = naive(table, whole, mini, lambda at, row=row: int(table.group[at]) == row["group"])
        assert {key: row[key] for key in expected} == pytest.approx(expected, **Same)
    for at in range(len(table)):
        assert float(result.per_token[at]) == pytest.approx(naive_summary(whole, [at])[1], **Same)
        outside = int(table.optimizer_step[at]) < 0
        alone = math.nan if outside or math.isnan(mini[1][at]) else naive_summary(mini, [at])[1]
        assert float(result.per_token_mini[at]) == pytest.approx(alone, **Same)


@pytest.mark.parametrize("seed", range(4))
def test_vocabulary_tables_equal_a_loop(seed: int) -> None:
    table = random_table(seed, rows=20)
    positive, negative = random_evidence(table, seed), random_evidence(table, 1000 + seed)
    result = cancellation(table, positive, negative, positive, negative)
    expected: dict[str, dict[str, float]] = {}
    for at, text in enumerate(table.text):
        up, down = float(positive[at]), float(negative[at])
        row = expected.setdefault(text, {"tokens": 0, "mass": 0.0, "positive": 0.0, "negative": 0.0, "net": 0.0})
        for key, value in (("tokens", 1), ("mass", abs(up) + abs(down)), ("positive", up), ("negative", down), ("net", abs(up + down))):
            row[key] += value
    for row in expected.values():
        row["cancellation"] = 1 - row.pop("net") / row["mass"]
        row["mean_effect"] = (row["positive"] + row["negative"]) / row["tokens"]
    listed = result.finding.tables["by_vocabulary"]
    assert [row["text"] for row in listed] == sorted(expected, key=lambda text: -expected[text]["mass"])
    for row in listed:
        assert {key: row[key] for key in expected[str(row["text"])]} == pytest.approx(expected[str(row["text"])], **Same)
    often = {text: row["mean_effect"] for text, row in expected.items() if row["tokens"] >= 5}
    order = [("amplified", text) for text in sorted(often, key=lambda text: -often[text]) if often[text] > 0]
    order += [("damped", text) for text in sorted(often, key=lambda text: often[text]) if often[text] < 0]
    assert [(row["direction"], row["text"]) for row in result.finding.tables["amplified_and_damped"]] == order


def test_items_seen_four_times_are_not_called_amplified_and_long_lists_are_cut() -> None:
    tokens = [0] * 4 + [1] * 5
    table = make_table(row=[0] * 9, group=[0] * 9, token=tokens, probability=[0.5] * 9, advantage=[1.0] * 9, score=[1.0] * 9)
    pushed = torch.tensor([9.0] * 4 + [1.0] * 5)
    rows = cancellation(table, pushed, -0.5 * pushed, pushed, pushed).finding.tables["amplified_and_damped"]
    assert [(row["direction"], row["text"], row["tokens"], row["mean_effect"]) for row in rows] == [("amplified", "b", 5, 0.5)]
    size = 30
    wide = make_table(
        row=[0] * size, group=[0] * size, token=[0] * size, probability=[0.5] * size, advantage=[1.0] * size, score=[1.0] * size
    )
    wide = TokenTable(**{**{name: getattr(wide, name) for name in wide.__dataclass_fields__}, "token": torch.arange(size)})
    masses = [row["mass"] for row in cancellation(wide, torch.arange(30.0), *[torch.zeros(30)] * 3).finding.tables["by_vocabulary"]]
    assert masses == list(range(29, 9, -1))


def two_siblings(optimizer_step: list[int]) -> tuple[TokenTable, Batch]:
    """Both begin with a; then the right one (A = 1) writes b, the wrong one (A = -1) c. Uniform over 4 words, contexts orthogonal.

    K is 3/4 between equal and -1/4 between different words of one context, 0 between contexts.
    a: D+ = 3/4, D- = -3/4;   b: D+ = 3/4, D- = 1/4;   c: D+ = -1/4, D- = -3/4.
    """
    table = make_table(
        row=[0, 0, 1, 1],
        group=[0] * 4,
        token=[0, 1, 0, 2],
        probability=[0.25] * 4,
        advantage=[1.0, 1.0, -1.0, -1.0],
        score=[1.0, 1.0, 0.0, 0.0],
        token_class=["copy", "result", "copy", "result"],
        optimizer_step=optimizer_step,
    )
    return table, Batch(context=[0, 1, 0, 1], token=[0, 1, 0, 2], weight=[1.0, 1.0, -1.0, -1.0], vocabulary=4)


def split(batch: Batch, steps: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Each token's effects from its own optimizer step alone."""
    positive, negative = torch.full((2, len(batch.token)), math.nan, dtype=torch.float64)
    for step in steps:
        up, down = batch.sides(step)
        positive[step], negative[step] = up[step], down[step]
    return positive, negative


def test_a_token_both_sides_share_cancels_and_what_only_one_wrote_does_not() -> None:
    table, batch = two_siblings([0, 0, 0, 0])
    positive, negative = batch.sides()
    assert positive.tolist() == [0.75, 0.75, 0.75, -0.25]
    assert negative.tolist() == [-0.75, 0.25, -0.75, -0.75]
    measured = batch.measured(1e-4) / 1e-4
    torch.testing.assert_close(measured, positive + negative, rtol=1e-3, atol=1e-12)
    result = cancellation(table, positive, negative, *split(batch, [[0, 1, 2, 3]]))
    assert result.per_token.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert result.finding.numbers["mass"] == pytest.approx(1 - 2 / 5)
    assert result.finding.numbers["mean"] == 0.5
    assert result.finding.numbers["lost/mass"] == 0.0


def test_dealing_siblings_into_two_steps_loses_all_of_it() -> None:
    table, batch = two_siblings([0, 0, 1, 1])
    result = cancellation(table, *batch.sides(), *split(batch, [[0, 1], [2, 3]]))
    assert result.per_token_mini.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert result.finding.numbers["lost/mass"] == pytest.approx(0.6)
    assert result.finding.numbers["lost/mean"] == 0.5
    lost = {row["token_class"]: row["lost_mass"] for row in result.finding.tables["by_class"]}
    assert lost == {"copy": 1.0, "result": 0.0}
    assert "over 4 tokens splitting takes away 60.0 points" in result.finding.note


def test_a_response_in_no_step_is_left_out_of_both_sides_of_the_comparison() -> None:
    table, batch = two_siblings([0, 0, -1, -1])
    stray = split(batch, [[0, 1]])
    stray[0][2:] = 5.0
    stray[1][2:] = -5.0
    result = cancellation(table, *batch.sides(), *stray)
    assert result.per_token_mini.isnan().tolist() == [False, False, True, True]
    assert result.finding.numbers["mini/tokens"] == 2
    assert result.finding.numbers["lost/mass"] == pytest.approx(1 - 1 / 2.5)


def test_where_nothing_pushes_there_is_nothing_to_cancel() -> None:
    assert token_cancellation(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0])).isnan().tolist() == [True, False]
    table, _ = two_siblings([-1] * 4)
    silent = cancellation(table, *[torch.zeros(4)] * 4).finding
    assert math.isnan(silent.numbers["mass"])
    assert "there is nothing to cancel" in silent.note
    alone = cancellation(table, torch.ones(4), *[torch.zeros(4)] * 3).finding
    assert alone.numbers["mass"] == 0.0
    assert "No token can be compared with its own optimizer step" in alone.note
    assert {row["text"] for row in alone.tables["by_vocabulary"]} == set(TEXTS[:3])

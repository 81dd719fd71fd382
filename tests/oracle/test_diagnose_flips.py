"""Flips against nested loops, and on a linear-softmax policy where who rises and who falls is known on paper."""

import math
from collections.abc import Callable

import pytest
import torch

from oracle.update_cases import Batch, make_table, random_evidence, random_table
from tokencredit.diagnose.flips import flips
from tokencredit.diagnose.table import TokenTable

BUCKETS = ("p < 0.5", "p 0.5–0.9", "p 0.9–0.99", "p ≥ 0.99")
Same = {"nan_ok": True, "rel": 1e-12, "abs": 1e-15}


def bucket(probability: float) -> str:
    return BUCKETS[sum(probability >= edge for edge in (0.5, 0.9, 0.99))]


def naive(table: TokenTable, change: list[float], sign: int, band: float, keep: Callable[[int], bool] = lambda _: True) -> dict[str, float]:
    tokens = boosted = suppressed = unchanged = 0
    total = 0.0
    for place, moved in enumerate(change):
        if math.isnan(moved) or not keep(place) or float(table.advantage[place]) * sign <= 0:
            continue
        tokens += 1
        total += moved
        boosted += moved > band
        suppressed += moved < -band
        unchanged += -band <= moved <= band
    share = [value / tokens if tokens else math.nan for value in (boosted, suppressed, unchanged, total)]
    return dict(zip(("tokens", "boosted", "suppressed", "unchanged", "mean_change"), (tokens, *share), strict=True))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_number_and_table_equals_a_loop(seed: int, dtype: torch.dtype) -> None:
    table = random_table(seed)
    changes = {"first": random_evidence(table, 100 + seed, unknown=0.1).to(dtype), "step": random_evidence(table, 200 + seed).to(dtype)}
    band = 3e-4
    finding = flips(table, changes["first"], changes["step"], dead_band=band)
    seen = 0
    for horizon, change in changes.items():
        for prefix, tau in (("", 0.0), ("band/", band)):
            positive, negative = (naive(table, change.double().tolist(), sign, tau) for sign in (1, -1))
            for side, expected in (("positive", positive), ("negative", negative)):
                row = next(r for r in finding.tables["matrix"] if (r["horizon"], r["band"], r["side"]) == (horizon, tau, side))
                assert {key: row[key] for key in expected} == pytest.approx(expected, **Same)
                for move in ("boosted", "suppressed"):
                    assert finding.numbers[f"{horizon}/{prefix}{side}/{move}"] == pytest.approx(expected[move], **Same)
            assert finding.numbers[f"{horizon}/{prefix}positive/flip"] == pytest.approx(positive["suppressed"], **Same)
            assert finding.numbers[f"{horizon}/{prefix}negative/flip"] == pytest.approx(negative["boosted"], **Same)
            gap = abs(positive["boosted"] - negative["boosted"])
            assert finding.numbers[f"{horizon}/{prefix}similarity"] == pytest.approx(gap, **Same)
        labels = {
            ("by_confidence", "confidence"): [bucket(float(p)) for p in table.probability],
            ("by_class", "token_class"): list(table.token_class),
        }
        for (name, column), label in labels.items():
            rows = {(r[column], r["side"]): r for r in finding.tables[name] if r["horizon"] == horizon}
            for part in set(label):
                for side, sign in (("positive", 1), ("negative", -1)):
                    expected = naive(table, change.double().tolist(), sign, band, lambda at, part=part, label=label: label[at] == part)
                    assert ((part, side) in rows) == (expected["tokens"] > 0)
                    if expected["tokens"]:
                        assert {key: rows[part, side][key] for key in expected} == pytest.approx(expected, **Same)
                        seen += 1
    assert seen > 10
    assert finding.numbers["without_side"] == int((table.advantage == 0).sum())


def three_siblings() -> tuple[TokenTable, Batch]:
    """Uniform over 4 words after one prompt; responses a (A = 1), b (A = 1), a (A = -2).

    K is 3/4 between equal and -1/4 between different words, so on paper the changes per unit of rate are
    a: 3/4 - 1/4 - 2 * 3/4 = -1;  b: 3/4 - 1/4 + 2/4 = 1;  the wrong a as the right one: -1.
    """
    table = make_table(
        row=[0, 1, 2], group=[0, 0, 0], token=[0, 1, 0], probability=[0.25] * 3, advantage=[1.0, 1.0, -2.0], score=[1.0, 1.0, 0.0]
    )
    return table, Batch(context=[0, 0, 0], token=[0, 1, 0], weight=[1.0, 1.0, -2.0], vocabulary=4)


def test_a_right_token_shared_with_a_worse_failure_flips() -> None:
    table, batch = three_siblings()
    change = batch.measured(1e-3)
    assert (change / 1e-3).tolist() == pytest.approx([-1, 1, -1], rel=1e-2)
    finding = flips(table, None, change)
    numbers = finding.numbers
    assert numbers["step/positive/flip"] == 0.5
    assert numbers["step/negative/flip"] == 0.0
    assert numbers["step/similarity"] == 0.5
    assert not [name for name in numbers if name.startswith("first")]
    assert "first optimizer step: not measured" in finding.note
    assert "50.0 % of 2 tokens of positive advantage fell" in finding.note
    assert "0.0 % of 1 token of negative advantage rose" in finding.note


def test_the_dead_band_tells_small_changes_apart() -> None:
    table, batch = three_siblings()
    inside, outside = (flips(table, None, batch.measured(rate)).numbers for rate in (1e-5, 1e-3))
    assert inside["step/positive/flip"] == outside["step/positive/flip"] == outside["step/band/positive/flip"] == 0.5
    assert inside["step/band/positive/flip"] == 0.0


def test_a_change_of_exactly_the_band_is_no_change() -> None:
    table, _ = three_siblings()
    finding = flips(table, None, torch.tensor([0.5, -0.5, 0.5]), dead_band=0.5)
    assert [row["unchanged"] for row in finding.tables["by_class"]] == [1.0, 1.0]
    assert finding.numbers["step/negative/flip"] == 1.0


@pytest.mark.parametrize("empty", ["positive", "negative"])
def test_an_empty_side_is_unknown_and_said_so(empty: str) -> None:
    other = "negative" if empty == "positive" else "positive"
    table = make_table(
        row=[0, 1],
        group=[0, 0],
        token=[0, 1],
        probability=[0.5, 0.5],
        advantage=[1.0 if other == "positive" else -1.0, 0.0],
        score=[1.0, 1.0],
    )
    finding = flips(table, None, torch.tensor([0.1, 0.1]))
    assert math.isnan(finding.numbers[f"step/{empty}/flip"])
    assert math.isnan(finding.numbers["step/similarity"])
    assert finding.numbers[f"step/{other}/boosted"] == 1.0
    assert finding.numbers["without_side"] == 1
    assert f"no token of {empty} advantage was measured" in finding.note
    assert "the sides cannot be compared" in finding.note


def test_mistakes_are_named() -> None:
    table, _ = three_siblings()
    with pytest.raises(ValueError, match=r"dead_band is -1.0; it must be 0 or more"):
        flips(table, None, torch.zeros(3), dead_band=-1.0)
    with pytest.raises(ValueError, match=r"change_step is \(2,\) but the table holds 3 tokens"):
        flips(table, None, torch.zeros(2))

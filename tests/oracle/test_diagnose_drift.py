"""Drift against loops over all pairs, and where the change of log-odds is known on paper."""

import math

import pytest
import torch

from oracle.update_cases import make_table, random_evidence, random_table
from tokencredit.diagnose.drift import drift
from tokencredit.diagnose.table import TokenTable

Same = {"nan_ok": True, "rel": 1e-9, "abs": 1e-12}


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def naive(table: TokenTable, change: list[float]) -> dict[str, float]:
    rows = sorted(set(table.row.tolist()))
    sequence: dict[int, list[int]] = {}
    moved, group, score = {}, {}, {}
    for row in rows:
        places = [at for at in range(len(table)) if int(table.row[at]) == row]
        places.sort(key=lambda at: int(table.position[at]))
        sequence[row] = [int(table.token[at]) for at in places]
        moved[row] = sum(change[at] for at in places)
        group[row], score[row] = int(table.group[places[0]]), float(table.score[places[0]])
    rows = [row for row in rows if not math.isnan(score[row]) and not math.isnan(moved[row])]
    equal, unequal, groups = [], [], {"equal": set(), "unequal": set()}
    for a in rows:
        for b in rows:
            if group[a] != group[b] or sequence[a] == sequence[b]:
                continue
            if score[a] == score[b] and a < b:
                equal.append(moved[a] - moved[b])
                groups["equal"].add(group[a])
            if score[a] > score[b]:
                unequal.append(moved[a] - moved[b])
                groups["unequal"].add(group[a])
    found = {"responses": len(rows), "unequal/mean": mean(unequal)}
    for kind, moves in (("equal", equal), ("unequal", unequal)):
        found |= {
            f"{kind}/pairs": len(moves),
            f"{kind}/absolute": mean([abs(move) for move in moves]),
            f"{kind}/rms": math.sqrt(mean([move * move for move in moves])),
            f"{kind}/groups": len(groups[kind]),
        }
    return found | {"ratio": found["equal/absolute"] / found["unequal/absolute"] if unequal else math.nan}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("unknown", [0.0, 0.05])
def test_every_number_equals_a_loop_over_pairs(seed: int, unknown: float) -> None:
    table = random_table(seed)
    change = random_evidence(table, seed, unknown=unknown)
    finding = drift(table, change)
    expected = naive(table, change.tolist())
    assert expected["responses"] > 3
    assert dict(finding.numbers) == pytest.approx(expected, **Same)


@pytest.mark.parametrize("seed", range(4))
def test_tables_equal_the_loop_over_their_part(seed: int) -> None:
    table = random_table(seed, rows=20, ungraded=0.0)
    change = random_evidence(table, seed)
    finding = drift(table, change)
    for row in finding.tables["by_group"]:
        part = torch.tensor([name == row["group"] for name in table.group.tolist()]).nonzero()[:, 0]
        expected = naive(table.select(part), change[part].tolist())
        assert row["responses"] == expected["responses"]
        assert (row["equal_pairs"], row["unequal_pairs"]) == (expected["equal/pairs"], expected["unequal/pairs"])
        assert row["equal_absolute"] == pytest.approx(expected["equal/absolute"], **Same)
        assert row["unequal_mean"] == pytest.approx(expected["unequal/mean"], **Same)
    assert finding.tables["by_score"]
    for row in finding.tables["by_score"]:
        part = torch.tensor([score == row["score"] for score in table.score.tolist()]).nonzero()[:, 0]
        expected = naive(table.select(part), change[part].tolist())
        assert (row["pairs"], row["absolute"], row["rms"]) == pytest.approx(
            (expected["equal/pairs"], expected["equal/absolute"], expected["equal/rms"]), **Same
        )


def test_equal_coefficients_drift_all_the_same() -> None:
    """Softmax (.6, .3, .1), coefficient 1/2 on each of two right answers a and b: on paper d log(p_a / p_b) = -0.3 per unit of rate.

    So differences of coefficients do not tell drift, and it has to be measured.
    """
    before = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    rate = 1e-4
    step = 0.5 * (torch.eye(3, dtype=torch.float64)[0] - before) + 0.5 * (torch.eye(3, dtype=torch.float64)[1] - before)
    change = ((before.log() + rate * step).log_softmax(-1) - before.log())[:2]
    table = make_table(row=[0, 1], group=[4, 4], token=[0, 1], probability=[0.6, 0.3], advantage=[0.5, 0.5], score=[1.0, 1.0])
    finding = drift(table, change)
    assert finding.numbers["equal/absolute"] / rate == pytest.approx(0.3, rel=1e-9)
    assert finding.numbers["equal/rms"] == finding.numbers["equal/absolute"]
    assert math.isnan(finding.numbers["unequal/mean"])
    assert math.isnan(finding.numbers["ratio"])
    assert "No pair of unequal score" in finding.note


def three_responses(scores: list[float], tokens: list[int]) -> TokenTable:
    """Of two tokens each, in one group."""
    return make_table(
        row=[0, 0, 1, 1, 2, 2],
        group=[0] * 6,
        token=tokens,
        probability=[0.5] * 6,
        advantage=[0.0] * 6,
        score=[score for score in scores for _ in range(2)],
    )


def test_sums_over_tokens_and_better_minus_worse() -> None:
    """Log-probs move by 3 (wrong), 1 (right), 0.5 (right): one equal pair, 0.5; unequal 1 - 3 and 0.5 - 3, not what was wanted."""
    table = three_responses([0.0, 1.0, 1.0], [0, 1, 0, 2, 0, 3])
    finding = drift(table, torch.tensor([1.0, 2.0, 0.5, 0.5, 1.0, -0.5]), source="fresh")
    assert finding.numbers["equal/pairs"] == 1
    assert finding.numbers["equal/absolute"] == 0.5
    assert finding.numbers["unequal/pairs"] == 2
    assert finding.numbers["unequal/mean"] == pytest.approx(-2.25)
    assert finding.numbers["unequal/rms"] == pytest.approx(math.sqrt((4 + 6.25) / 2))
    assert finding.numbers["ratio"] == pytest.approx(0.5 / 2.25)
    assert "Among fresh responses, 1 pair of" in finding.note
    assert "-2.2500 nats" in finding.note


def test_the_same_response_twice_is_no_pair_and_the_same_tokens_in_other_order_are() -> None:
    twice = drift(three_responses([1.0, 1.0, math.nan], [0, 1, 0, 1, 0, 2]), torch.arange(6.0))
    assert twice.numbers["responses"] == 2
    assert twice.numbers["equal/pairs"] == 0
    assert math.isnan(twice.numbers["equal/absolute"])
    assert "drift is unknown" in twice.note
    turned = drift(three_responses([1.0, 1.0, math.nan], [0, 1, 1, 0, 0, 2]), torch.arange(6.0))
    assert turned.numbers["equal/absolute"] == pytest.approx(abs(0 + 1 - 2 - 3))


def test_a_response_that_is_the_start_of_another_is_a_different_one() -> None:
    table = make_table(row=[0, 1, 1], group=[0] * 3, token=[0, 0, 1], probability=[0.5] * 3, advantage=[0.0] * 3, score=[1.0] * 3)
    assert drift(table, torch.tensor([1.0, 1.0, 2.0])).numbers["equal/absolute"] == 2.0

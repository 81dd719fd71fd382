"""Value of boosted and suppressed tokens against loops, a bootstrap that redraws prompt by prompt, and answers on paper."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tokencredit.diagnose.table import TokenTable
from tokencredit.diagnose.value import bootstrap_difference, token_value

NAN = math.nan


def make_table(advantage: Tensor, group: Tensor) -> TokenTable:
    count = len(group)
    zeros, place = torch.zeros(count, dtype=torch.float64), torch.arange(count)
    columns: dict[str, Any] = dict.fromkeys(("logp", "credit", "score", "entropy"), zeros)
    columns |= dict.fromkeys(("row", "position", "token", "optimizer_step"), place)
    return TokenTable(**columns, text=("x",) * count, token_class=("x",) * count, advantage=advantage, group=group)


def make_case(seed: int, count: int = 60) -> tuple[TokenTable, Tensor, Tensor, Tensor]:
    """Unknown values, unknown changes, changes inside the dead band, advantages of 0, prompt numbers with holes."""
    draw = torch.Generator().manual_seed(seed)

    def uniform() -> Tensor:
        return torch.rand(count, generator=draw, dtype=torch.float64)

    group = torch.randint(6, (count,), generator=draw) * 5 + 1
    advantage = torch.tensor([1.0, -0.5, 0.0, -2.0, 0.5], dtype=torch.float64)[torch.randint(5, (count,), generator=draw)]
    change = ((uniform() - 0.5) * (uniform() > 0.2) + 1e-5).where(uniform() > 0.1, NAN)
    return make_table(advantage, group), change, uniform().where(uniform() > 0.2, NAN), uniform().where(uniform() > 0.2, NAN)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else NAN


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(value for value in values if not math.isnan(value))
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def naive_interval(boosted: list[tuple[int, float]], suppressed: list[tuple[int, float]], seed: int, draws: int) -> tuple[float, float]:
    """Tokens as (prompt, value); every draw copies whole prompts and takes the means afresh."""
    prompts = sorted({prompt for prompt, _ in boosted + suppressed})
    if len(prompts) < 2 or not boosted or not suppressed:
        return NAN, NAN
    picked = torch.randint(len(prompts), (draws, len(prompts)), generator=torch.Generator().manual_seed(seed)).tolist()
    differences = []
    for draw in picked:
        copies = [prompts[place] for place in draw]
        up = [value for copy in copies for prompt, value in boosted if prompt == copy]
        down = [value for copy in copies for prompt, value in suppressed if prompt == copy]
        differences.append(mean(up) - mean(down))
    return quantile(differences, 0.025), quantile(differences, 0.975)


@pytest.mark.parametrize("seed", range(3))
def test_cells_differences_and_intervals(seed: int) -> None:
    table, change, before, after = make_case(seed)
    finding = token_value(table, change, before, after, seed=seed, draws=80)
    known = [i for i in range(len(table)) if not math.isnan(float(change[i] + before[i] + after[i]))]
    measures = {"value": after.tolist(), "gain": (after - before).tolist()}
    cells = {(row["side"], row["movement"]): row for row in finding.tables["cells"]}
    differences = {(row["side"], row["measure"]): row for row in finding.tables["differences"]}
    assert len(cells) == len(differences) == 4
    for side, sign in (("positive", 1), ("negative", -1)):
        tokens = {
            "boosted": [i for i in known if float(table.advantage[i]) * sign > 0 and float(change[i]) > 1e-4],
            "suppressed": [i for i in known if float(table.advantage[i]) * sign > 0 and float(change[i]) < -1e-4],
        }
        for movement, places in tokens.items():
            row = cells[side, movement]
            assert row["tokens"] == len(places) > 0
            assert row["prompts"] == len({int(table.group[i]) for i in places})
            for measure, values in measures.items():
                assert row[measure] == pytest.approx(mean([values[i] for i in places]))
        for measure, values in measures.items():
            up, down = ([(int(table.group[i]), values[i]) for i in places] for places in tokens.values())
            row = differences[side, measure]
            assert row["difference"] == pytest.approx(mean([v for _, v in up]) - mean([v for _, v in down]))
            assert (row["low"], row["high"]) == pytest.approx(naive_interval(up, down, seed, 80))
            assert row["prompts"] == len({prompt for prompt, _ in up + down})
            assert finding.numbers[f"{side}/{measure}/low"] == row["low"]
    assert finding.numbers["tokens"] == len(known)
    assert finding.numbers["still"] == pytest.approx(mean([abs(float(change[i])) <= 1e-4 for i in known]))


def test_an_answer_worked_out_on_paper() -> None:
    """Both prompts are alike, so every draw gives the same difference and the interval has no width.

    Positive side, per prompt: boosted goes from 1/4 to 3/4, suppressed from 3/4 to 1/2. Value differs by 1/4, gain by 3/4.
    """
    table = make_table(torch.ones(4), torch.tensor([3, 3, 8, 8]))
    change = torch.tensor([0.1, -0.1, 0.2, -0.3])
    before, after = torch.tensor([0.25, 0.75, 0.25, 0.75]), torch.tensor([0.75, 0.5, 0.75, 0.5])
    finding = token_value(table, change, before, after, seed=0)
    assert [finding.numbers[f"positive/value/{end}"] for end in ("difference", "low", "high")] == pytest.approx([0.25] * 3)
    assert [finding.numbers[f"positive/gain/{end}"] for end in ("difference", "low", "high")] == pytest.approx([0.75] * 3)
    assert math.isnan(finding.numbers["negative/gain/difference"])
    assert "In positive responses 2 boosted tokens less 2 suppressed tokens: mean value +0.250, mean gain +0.750" in finding.note
    assert "In negative responses no boosted and no suppressed token has a known value" in finding.note
    cells = {(row["side"], row["movement"]): row for row in finding.tables["cells"]}
    assert cells["negative", "boosted"]["tokens"] == 0
    assert math.isnan(float(cells["negative", "boosted"]["gain"] or 0))


def test_the_dead_band_is_not_a_movement() -> None:
    table = make_table(torch.ones(3), torch.tensor([0, 0, 1]))
    values = torch.tensor([0.0, 0.5, 1.0])
    finding = token_value(table, torch.tensor([0.5, 0.25, -0.5]), torch.zeros(3), values, seed=0, dead_band=0.25)
    rows = {row["movement"]: row for row in finding.tables["cells"] if row["side"] == "positive"}
    assert (rows["boosted"]["tokens"], rows["suppressed"]["tokens"]) == (1, 1)
    assert finding.numbers["still"] == pytest.approx(1 / 3)


def test_one_prompt_has_no_interval() -> None:
    up, down = torch.tensor([True, False]), torch.tensor([False, True])
    found = bootstrap_difference(torch.tensor([1.0, 0.25]), up, down, torch.tensor([7, 7]), seed=0, draws=50)
    assert found.difference == 0.75
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    table = make_table(torch.ones(2), torch.tensor([7, 7]))
    finding = token_value(table, torch.tensor([1.0, -1.0]), torch.zeros(2), torch.tensor([1.0, 0.25]), seed=0)
    assert "fewer than two prompts" in finding.note


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Prompts with an effect of their own around 0.3: near 95 of 100 intervals hold 0.3; 40 prompts, 200 samples."""
    draw = torch.Generator().manual_seed(5)
    group = torch.arange(40).repeat_interleave(2)
    boosted = torch.arange(80) % 2 == 0
    held = 0
    for seed in range(200):
        effect = 0.3 + 0.2 * torch.randn(40, generator=draw, dtype=torch.float64)
        value = torch.stack([effect, torch.zeros(40)], dim=1).flatten() + torch.randn(40, generator=draw)[group]
        found = bootstrap_difference(value, boosted, ~boosted, group, seed=seed, draws=300)
        held += found.low <= 0.3 <= found.high
    assert 180 <= held <= 198

"""However the rows of a batch lie on ranks, every rank gets the credit of one rank that holds them all; wrong versions do not."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch

from engine.crediting_cases import SPLITS, Case, CreditedBatch, credit_case, crediting_of, made_up_case
from engine.threaded_ranks import on_ranks
from laws.harness import Edit, loaded_with
from surface.methods import sampling, stored
from tokencredit.config.recipes import RECIPES
from tokencredit.errors import ConfigError
from tokencredit.pipeline import credit
from tokencredit.pipeline.build import needed_evidence, sampled_evidence
from tokencredit.pipeline.credit import MethodState

DELTAS: list[dict[str, Any]] = [
    *(
        {"scope": scope, "proxy": proxy, "temperature": temperature}
        for scope, proxy, temperature in product(
            ("batch", "group"), ("row", "head", "hidden-gradient"), ("adaptive", "first-batch", "constant")
        )
    ),
    {"score": "own-side", "scope": "group"},
    {"assignment": "hard", "refinements": 2},
    {"coefficient_map": "symmetric", "proxy": "head"},
    {"coefficient_map": "raw", "normalize": False},
    {"refinements": 0, "gamma_scale": 0.5},
]
WITHOUT_SAMPLING = [name for name, entry in RECIPES.items() if not sampled_evidence(entry.recipe) and name != "random-lambda"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def batches(cases: Sequence[Case], recipe: Any, split: Sequence[tuple[int, ...]] | None, code: Any = credit) -> list[list[CreditedBatch]]:
    """By rank, one batch after the other, each with the state that the one before left behind."""

    def run(rows: tuple[int, ...] | None, **where: Any) -> list[CreditedBatch]:
        made, state, results = crediting_of(recipe, code), MethodState(), []
        for case in cases:
            results.append(credit_case(made, case, state, rows, **where))
            state = results[-1].state
        return results

    return [run(None)] if split is None else on_ranks(len(split), lambda ranks: run(split[ranks.index], ranks=ranks))


def numbers(result: CreditedBatch) -> list[torch.Tensor]:
    credited = result.credited
    return [credited.credit, credited.advantage, *([] if credited.coefficient is None else [credited.coefficient])]


def assert_ranks_agree(cases: Sequence[Case], recipe: Any, split: str, alone: list[CreditedBatch], code: Any = credit) -> None:
    """With one rank that holds everything to rounding, and with each other to the bit."""
    tolerance = TOLERANCE[cases[0].evidence.logp.dtype]
    by_rank = batches(cases, recipe, SPLITS[split], code)
    for own in by_rank:
        for result, first, expected in zip(own, by_rank[0], alone, strict=True):
            assert result.state == first.state
            torch.testing.assert_close(result.state.credit, expected.state.credit, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(result.state.advantage, expected.state.advantage, rtol=tolerance, atol=tolerance)
            for got, same, right in zip(numbers(result), numbers(first), numbers(expected), strict=True):
                assert torch.equal(got, same)
                torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("knobs", DELTAS, ids=lambda knobs: " ".join(map(str, knobs.values())))
def test_delta_is_the_same_however_rows_lie_on_ranks(knobs: dict[str, Any]) -> None:
    recipe, seeds = {"recipe": "delta", "credit": knobs}, (0, 1) if knobs.get("temperature") == "first-batch" else (0,)
    for dtype, splits in {torch.float64: tuple(SPLITS), torch.float32: ("three ranks, rows in any order",)}.items():
        cases = [made_up_case(seed, dtype) for seed in seeds]
        alone = batches(cases, recipe, None)[0]
        for split in splits:
            assert_ranks_agree(cases, recipe, split, alone)


@pytest.mark.parametrize("knobs", DELTAS, ids=lambda knobs: " ".join(map(str, knobs.values())))
def test_these_cases_have_something_to_get_wrong(knobs: dict[str, Any]) -> None:
    """Coefficients differ between tokens, and depend on rows of every rank; a first batch leaves its temperature behind."""
    recipe, case = {"recipe": "delta", "credit": knobs}, made_up_case()
    result = batches([case], recipe, None)[0][0]
    inside = case.scored.rollouts.loss_mask
    assert result.credited.coefficient is not None
    assert result.credited.coefficient[inside & (case.scored.rollouts.group == 9)[:, None]].unique().numel() > (
        knobs.get("assignment") == "hard"
    )
    assert ("temperature" in result.state.credit) == (knobs.get("temperature") == "first-batch")


@pytest.mark.parametrize("name", ["delta-symmetric", "delta-momentum", "sibling-value"])
def test_our_recipes_with_hidden_states_are_the_same_however_rows_lie_on_ranks(name: str) -> None:
    cases = [made_up_case(seed) for seed in (0, 1)]
    alone = batches(cases, name, None)[0]
    for split in ("groups straddle", "three ranks, rows in any order"):
        by_rank = batches(cases, name, SPLITS[split])
        for own in by_rank:
            for result, first, expected in zip(own, by_rank[0], alone, strict=True):
                assert result.state == first.state
                assert result.state.credit.keys() == expected.state.credit.keys()
                for got, same, right in zip(numbers(result), numbers(first), numbers(expected), strict=True):
                    assert torch.equal(got, same)
                    # A direction is carried in float32.
                    torch.testing.assert_close(got, right, rtol=1e-6, atol=1e-6)
    assert ("direction" in alone[0].state.credit) == (name == "delta-momentum")
    assert alone[0].credited.coefficient is not None
    assert alone[0].credited.coefficient[cases[0].scored.rollouts.loss_mask].std() > 0.1


@pytest.mark.parametrize("name", [name for name in WITHOUT_SAMPLING if "hidden" not in needed_evidence(RECIPES[name].recipe)])
def test_recipes_without_hidden_states_are_the_same_to_the_bit(name: str) -> None:
    cases = [made_up_case(seed) for seed in (0, 1)]
    alone = batches(cases, name, None)[0]
    for split in ("groups straddle", "three ranks, rows in any order"):
        for own in batches(cases, name, SPLITS[split]):
            for result, expected in zip(own, alone, strict=True):
                assert result.state == expected.state
                assert all(torch.equal(got, right) for got, right in zip(numbers(result), numbers(expected), strict=True))
    assert any(result.credited.credit.any() for result in alone)


def test_other_recipes_were_looked_at_too() -> None:
    credits = {RECIPES[name].recipe.credit.type for name in WITHOUT_SAMPLING}
    sampled = {stored()["recipes"][name]["credit"] for name in sampling()}
    assert credits == stored()["methods"]["credit"].keys() - (sampled - {"uniform"})


# --- random scores and shards


def test_random_scores_are_drawn_apart_on_every_rank_and_normalised_together() -> None:
    case = made_up_case()
    split = SPLITS["in turns"]
    first, again = (batches([case], "random-lambda", split) for _ in range(2))
    coefficient, mask = first[0][0].credited.coefficient, case.scored.rollouts.loss_mask
    assert coefficient is not None
    assert all(torch.equal(own[0].credited.coefficient, coefficient) for own in (*first, *again))
    assert float(coefficient[mask].mean()) == pytest.approx(1.0, abs=1e-12)
    drawn = [coefficient[list(rows)][mask[list(rows)]] for rows in split]
    assert torch.cat(drawn).unique().numel() == int(mask.sum())


def test_shards_of_one_rank_are_refused_on_several() -> None:
    """Rows are told apart by their number, which on several ranks is not that in the batch."""
    case, recipe = made_up_case(), {"recipe": "delta", "credit": {"scope": "shard"}}
    assert batches([case], recipe, None)[0][0].credited.coefficient is not None
    with pytest.raises(ConfigError, match=r"2 ranks.*credit\.scope 'shard'.*'batch' or 'group'"):
        batches([case], recipe, SPLITS["in turns"])


# --- wrong versions

MODULES = ("pipeline.distributed", "pipeline.credit")
MUTANTS: dict[str, Edit] = {
    "each rank its own statistics": Edit("pipeline.credit", '{"reduce": merging(ranks)}', "{}"),
    "own rows are the first": Edit("pipeline.credit", "{name: value[rows] for", "{name: value[: len(rows)] for"),
    "columns are counted from the end": Edit("pipeline.credit", "value[:, :width] for", "value[:, value.shape[1] - width :] for"),
    "credit of the own rows alone": Edit(
        "pipeline.credit",
        "for part_rows, part_credit, part_coefficient in parts:",
        "for part_rows, part_credit, part_coefficient in [parts[ranks.index]]:",
    ),
    "coefficients of the own rows alone": Edit(
        "pipeline.credit",
        "if coefficient is not None:\n            coefficient[part",
        "if coefficient is not None and part_rows.equal(rows):\n            coefficient[part",
    ),
    "credit in place of coefficients": Edit("pipeline.credit", "= part_coefficient\n", "= part_credit\n"),
    "rows of a rank in ascending order": Edit(
        "pipeline.credit",
        "credit[part_rows, : part_credit.shape[1]] = part_credit\n        if",
        "credit[part_rows.sort().values, : part_credit.shape[1]] = part_credit\n        if",
    ),
    "the credit's state is not kept": Edit(
        "pipeline.credit", "return CreditOutcome(credit, coefficient, assigned.state)", "return CreditOutcome(credit, coefficient, {})"
    ),
    "the last rank is forgotten": Edit(
        "pipeline.distributed", "ranks.gather(accumulator))", "ranks.gather(accumulator)[:-1] or [accumulator])"
    ),
}


@pytest.mark.parametrize("mutant", [None, *(pytest.param(name, marks=pytest.mark.mutants) for name in MUTANTS)])
def test_wrong_versions_are_noticed(mutant: str | None) -> None:
    code = loaded_with(MODULES, None if mutant is None else MUTANTS[mutant])
    cases, recipe = [made_up_case(seed) for seed in (0, 1)], {"recipe": "delta", "credit": {"temperature": "first-batch"}}
    alone = batches(cases, recipe, None)[0]
    with nullcontext() if mutant is None else pytest.raises((AssertionError, ValueError)):
        assert_ranks_agree(cases, recipe, "three ranks, rows in any order", alone, code)

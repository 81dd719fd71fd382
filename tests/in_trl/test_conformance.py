"""The same rollouts through TRL and through the local engine: the same advantage, coefficients, credit, plan, loss, gradient, weights."""

from pathlib import Path

import pytest
import torch

from conformance import outcome
from conformance.cases import CASES, CLIPPED, Case
from conformance.compare import BOUND, assert_same
from conformance.outcome import Outcome
from conformance.reference import batches_of, reference, run_case
from conformance.stored import GROUP_SIZE, LIMIT
from in_trl.stored_run import run_stored
from in_trl.two_ranks import RANKS, case_file

ACCUMULATED = ("delta, whole groups", "clip-cov", "dfpo", "gspo", "grpo, balanced by weight", "grpo, on policy")
"""The last one passes its whole batch in two micro-batches and makes no old log-probs."""


@pytest.mark.parametrize("name", CASES)
def test_one_rank(name: str, tmp_path: Path) -> None:
    assert_same(name, run_stored(CASES[name], tmp_path), reference(name).outcome)


def test_draws_are_the_same(tmp_path: Path) -> None:
    """Of the one credit that draws; with several ranks each draws for itself."""
    case = Case({"recipe": "random-lambda"})
    assert_same("random-lambda", run_stored(case, tmp_path), run_case(case).outcome)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("name", CASES)
def test_two_ranks(name: str, rank: int, two_ranks: Path) -> None:
    assert_same(f"{name}, rank {rank} of two", outcome.read(case_file(two_ranks, name, rank)), reference(name).outcome)


@pytest.mark.parametrize("name", ACCUMULATED)
def test_micro_batches_change_nothing(name: str, tmp_path: Path) -> None:
    assert_same(f"{name} in micro-batches", run_stored(CASES[name], tmp_path, accumulated=2), reference(name).outcome)


def test_micro_batches_change_nothing_with_two_ranks(two_ranks: Path) -> None:
    assert_same("clip-cov in micro-batches", outcome.read(case_file(two_ranks, "accumulated", 0)), reference("clip-cov").outcome)


@pytest.mark.parametrize("name", ["delta", "clip-cov"])
def test_gradient_checkpointing_changes_nothing(name: str, tmp_path: Path) -> None:
    settings = {"gradient_checkpointing": True, "accumulated": 2}
    assert_same(f"{name} with checkpointing", run_stored(CASES[name], tmp_path, **settings), reference(name).outcome)


def test_stored_rollouts_are_awkward() -> None:
    for batch in batches_of(CASES["grpo"]):
        by_group = [batch.score[first : first + GROUP_SIZE] for first in range(0, len(batch.score), GROUP_SIZE)]
        assert {1.0} in map(set, by_group)
        assert {0.0} in map(set, by_group)
        assert any(all(score != score for score in group) for group in by_group)
        assert any(sum(score != score for score in group) == 1 for group in by_group)
        assert len({len(ids) for ids in batch.prompt_ids}) > 2
        assert len({len(ids) for ids in batch.response_ids}) > 5
        half = len(batch.score) // 2
        for ids in (batch.prompt_ids, batch.response_ids):
            assert max(map(len, ids[:half])) != max(map(len, ids[half:])), "two ranks pad to the same width"
        at_limit = [done for ids, done in zip(batch.response_ids, batch.finished, strict=True) if len(ids) == LIMIT]
        assert not all(at_limit), "no response is cut at the limit"
        assert any(batch.finished)
    assert any(not all(written) for batch in batches_of(CASES["delta with tools"]) for written in batch.written)


@pytest.mark.parametrize("name", CASES)
def test_the_cases_compare_something(name: str) -> None:
    """Every batch gives a gradient, later optimizer steps are off policy, and clips are active where the objective has them."""
    found = reference(name)
    assert all(any(norm > 0.01 for norm in result.gradient_norm) for result in found.results)
    if CASES[name].optimizer_steps > 1:
        assert all(max(abs(ratio - 1) for ratio in result.ratio_mean[1:]) > 1e-4 for result in found.results)
    assert (name not in CLIPPED) or any(share > 0 for result in found.results for share in result.silenced_share)


def _differing(found: Outcome) -> dict[str, Outcome]:
    """The smallest lies that must be noticed."""
    batch, more = found.batches[0], 10 * BOUND
    nudged = {name: getattr(batch, name) + more for name in ("advantage", "coefficient", "credit")}
    nudged |= {"plan_digest": "", "rows_of_steps": batch.rows_of_steps[::-1], "coefficient gone": None}
    lies = {name: found._replace(batches=(batch._replace(**{name.split()[0]: lie}), *found.batches[1:])) for name, lie in nudged.items()}
    one_entry = found.gradient.clone()
    one_entry[-1, 0] += more * float(found.gradient[-1].norm().clamp(min=1))
    loss = (*found.loss[:-1], found.loss[-1] + more)
    return lies | {
        "loss": found._replace(loss=loss),
        "gradient": found._replace(gradient=one_entry),
        "weights": found._replace(weights=found.weights + more),
        "not finite": found._replace(weights=found.weights * torch.nan),
        "a step less": found._replace(loss=found.loss[:-1]),
    }


@pytest.mark.parametrize("lie", _differing(reference("delta").outcome))
def test_a_difference_is_noticed(lie: str) -> None:
    found = reference("delta").outcome
    with pytest.raises(AssertionError):
        assert_same(lie, _differing(found)[lie], found)

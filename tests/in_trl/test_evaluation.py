"""Evaluation works in between and leaves training as it was."""

import json
from pathlib import Path

import pytest
import torch

from conformance.cases import CASES
from conformance.reference import batches_of
from in_trl.small_run import problems, small_trainer
from in_trl.stored_run import prompts_of, stored_trainer
from in_trl.two_ranks import RANKS


@pytest.mark.parametrize("name", ["fade", "clip-cov", "delta, whole groups"])
def test_weights_are_the_same_with_and_without(name: str, tmp_path: Path) -> None:
    """To the bit; what a method remembers is not fed by evaluation."""
    asked = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    with_it = stored_trainer(CASES[name], tmp_path, named={"eval_dataset": prompts_of(batches_of(CASES[name])[:1])}, **asked)
    without = stored_trainer(CASES[name], tmp_path)
    for trainer in (with_it, without):
        trainer.train()
    assert torch.equal(with_it.outcome.weights, without.outcome.weights)
    assert with_it.stage_state == without.stage_state
    evaluations = [entry for entry in with_it.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 8
    assert evaluations[0].keys() >= {"eval_reward", "eval_tokencredit/ungraded", "eval_entropy"}


@pytest.mark.parametrize("recipe", ["delta", "dfpo", "fade"])
def test_evaluating_before_training(recipe: str, tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, recipe, named={"eval_dataset": problems(6, "held-out")}, per_device_eval_batch_size=8)
    found = trainer.evaluate()
    assert 0 <= found["eval_reward"] <= 1
    assert torch.isfinite(torch.tensor(found["eval_loss"]))
    assert trainer._step == 0
    assert trainer._buffered_inputs is None
    assert trainer.stage_state == ({}, {})


def test_one_response_for_each_prompt(tmp_path: Path) -> None:
    """Groups of one have nothing to compare; the reward is what is asked for."""
    named = {"eval_dataset": problems(6, "held-out")}
    trainer = small_trainer(tmp_path, "delta", named=named, per_device_eval_batch_size=4, num_generations_eval=1)
    assert 0 <= trainer.evaluate()["eval_reward"] <= 1


def test_two_ranks_see_the_same(two_ranks: Path) -> None:
    first, second = (json.loads((two_ranks / f"evaluation.{rank}.json").read_text()) for rank in range(RANKS))
    for recipe, found in first.items():
        assert 0 <= found["eval_reward"] <= 1
        for name in ("eval_loss", "eval_reward", "eval_entropy", "eval_tokencredit/tokens"):
            assert found[name] == second[recipe][name]

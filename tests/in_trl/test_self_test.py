"""The start-up test passes with every recipe this trainer takes, stops at a TRL that loses token credit, and leaves no trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from in_trl.small_run import LIMIT, small_trainer
from tokencredit.config.recipes import RECIPES
from tokencredit.integrations.support import EngineUnavailableError
from tokencredit.integrations.trl.self_test import check_credit_reaches_gradient
from tokencredit.pipeline.build import sampled_evidence
from tokencredit.pipeline.credit import CreditPipeline

TAKEN = [name for name, entry in RECIPES.items() if not sampled_evidence(entry.recipe) and not entry.recipe.filter_groups]
STOCK_LOSS = GRPOTrainer.compute_loss


def _changed(rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    batch = rows["tokencredit"]
    return {**rows, "tokencredit": batch._replace(inputs=batch.inputs._replace(**changes))}


def averaged(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
    """Every token of a response gets the mean of its credit, as with one ratio per response."""
    credit = inputs["tokencredit"].inputs.credit
    return STOCK_LOSS(self, model, _changed(inputs, credit=credit.mean(-1, keepdim=True).expand_as(credit)))


def without_our_pass(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
    """Log-probs come from another place than the one we override."""
    own = torch.zeros_like(inputs["tokencredit"].inputs.logp, requires_grad=True)
    return (own * inputs["tokencredit"].inputs.credit).sum()


def without_credit(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
    return -self._pass(model, inputs)[0].mean()


def without_gradient(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
    return STOCK_LOSS(self, model, inputs).detach()


def sign_turned(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
    return -STOCK_LOSS(self, model, inputs)


def divided_twice(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
    return STOCK_LOSS(self, model, inputs) / 2


def stock_loss_after_all(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
    """TRL's own loss in place of ours: it wants old log-probs or an attribute that is not there, or normalises otherwise."""
    return GRPOTrainer._compute_loss(self, model, {**inputs, "advantages": inputs["advantages"].mean(-1)})


MUTANTS = (averaged, without_our_pass, without_credit, without_gradient, sign_turned, divided_twice, stock_loss_after_all)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return small_trainer(tmp_path_factory.mktemp("run"), "delta")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_trl_that_loses_credit_is_refused(mutant: Callable[..., Any], trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRPOTrainer, "compute_loss", mutant)
    with pytest.raises(EngineUnavailableError, match=r"trl [\d.]+ does not do what this adapter was tested with \(trl 1\.16\.0\): credit"):
        check_credit_reaches_gradient(trainer, trainer.credit_pipeline.objective)


def test_it_runs_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRPOTrainer, "compute_loss", averaged)
    with pytest.raises(EngineUnavailableError):
        small_trainer(tmp_path, "delta")


def test_a_loss_that_cannot_be_computed_is_told(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(self: Any, model: Any, inputs: Any, **_: Any) -> Any:
        raise KeyError("old_logps")

    monkeypatch.setattr(GRPOTrainer, "compute_loss", renamed)
    with pytest.raises(EngineUnavailableError, match=r"its loss could not be computed \(KeyError: 'old_logps'\)"):
        check_credit_reaches_gradient(trainer, trainer.credit_pipeline.objective)


def test_a_loss_that_meets_rows_without_credit_says_so(trainer: Any) -> None:
    with pytest.raises(RuntimeError, match="a batch without credit"):
        trainer._compute_loss(trainer.model, {"prompt_ids": torch.ones(1, 1)})


@pytest.mark.parametrize("name", TAKEN)
def test_every_recipe_passes(name: str, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = CreditPipeline(RECIPES[name].recipe, max_new_tokens=LIMIT, temperature=1.0)
    monkeypatch.setattr(trainer, "credit_pipeline", pipeline)
    check_credit_reaches_gradient(trainer, pipeline.objective)


def test_it_leaves_no_trace(trainer: Any) -> None:
    trainer.model.train()
    trainer._metrics["train"]["entropy"].append(0.25)
    before = {mode: {name: list(values) for name, values in kept.items()} for mode, kept in trainer._metrics.items()}
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    check_credit_reaches_gradient(trainer, trainer.credit_pipeline.objective)
    assert trainer.model.training
    assert {mode: {name: list(values) for name, values in kept.items()} for mode, kept in trainer._metrics.items()} == before
    assert "_get_per_token_logps_and_entropies" not in vars(trainer)
    assert all(torch.equal(value, weights[name]) for name, value in trainer.model.state_dict().items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())

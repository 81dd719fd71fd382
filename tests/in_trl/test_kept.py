"""What a user of TRL has goes on working: adapters, mixed precision, streamed data, an optimizer of one's own, positional arguments."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoTokenizer

from conformance.cases import CASES
from conformance.reference import reference
from conformance.stored import base_folder
from in_trl.small_run import problems, right_answer, small_trainer, trained
from in_trl.stored_run import load_model, quiet_config, stored_trainer
from tokencredit.integrations.trl import CreditGRPOTrainer

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": True}


def _weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


@pytest.mark.parametrize("recipe", ["dapo", "delta", {"recipe": "delta", "kl": {"beta": 0.05}}, "clip-cov"])
def test_adapters_train_and_the_base_does_not(recipe: Any, tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, recipe, max_steps=8, learning_rate=1e-2, named={"peft_config": LoraConfig(**LORA)})
    before = _weights(trainer)
    trainer.train()
    moved = {name for name, value in _weights(trainer).items() if not torch.equal(value, before[name])}
    adapter = {name for name in before if "lora" in name}
    assert moved == adapter
    assert adapter


def test_credit_with_an_adapter_is_that_of_the_policy(tmp_path: Path) -> None:
    """A fresh adapter changes nothing yet, so the first batch gets the credit it gets without one, also beside a reference."""
    case = CASES["delta"]
    case = case._replace(recipe={**case.recipe, "kl": {"beta": 0.05}})
    trainer = stored_trainer(case, tmp_path, max_steps=1, named={"peft_config": LoraConfig(**LORA)})
    trainer.train()
    expected = reference("delta").outcome.batches[0]
    assert (trainer.made[0].credit - expected.credit).abs().max() < 1e-5


def test_the_reference_of_an_adapter_is_not_taken_for_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy and reference are one model here, with and without its adapter; they differ once it is trained."""
    seen: list[Any] = []
    credit = CreditGRPOTrainer._credit
    monkeypatch.setattr(
        CreditGRPOTrainer, "_credit", lambda self, rows, found: seen.append((found, credit(self, rows, found))) or seen[-1][1]
    )
    recipe = {"recipe": "delta", "kl": {"beta": 0.05}}
    for settings in ({}, {"optimizer_steps": 1, "accumulated": 4, "max_steps": 2}):
        seen.clear()
        settings = {"max_steps": 8, "learning_rate": 1e-2, **settings}
        trainer = small_trainer(tmp_path, recipe, named={"peft_config": LoraConfig(**LORA)}, **settings)
        trainer.train()
        head = trainer.model.get_base_model().get_output_embeddings().weight
        for number, (found, batch) in enumerate(seen):
            mask, tokens = batch.credited.rollouts.mask, batch.credited.rollouts.tokens
            drift = (batch.credited.old_logp - batch.credited.reference_logp)[mask].abs().max()
            assert (drift > 1e-3) == (number > 0)
            of_hidden = (found.hidden @ head.T).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
            assert (of_hidden - batch.credited.old_logp)[mask].abs().max() < 1e-4


@pytest.mark.parametrize("recipe", ["delta", "clip-cov"])
def test_trl_defaults_of_precision(recipe: str, tmp_path: Path) -> None:
    """bfloat16 with gradient checkpointing, and micro-batches."""
    trainer = small_trainer(tmp_path, recipe, bf16=True, gradient_checkpointing=True, accumulated=2, max_steps=8)
    before = _weights(trainer)
    trainer.train()
    after = _weights(trainer)
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


def test_streamed_data(tmp_path: Path) -> None:
    streamed = problems(64).to_iterable_dataset()
    trainer = small_trainer(tmp_path, "delta", named={"train_dataset": streamed}, max_steps=8)
    trainer.train()
    assert trainer.state.global_step == 8


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    """A balanced plan leaves out a batch in which every response is right: optimizer steps without gradient, and no mishap."""
    recipe = {"recipe": "c-rf", "batching": {"type": "reward-balanced", "method": "subsample"}}

    def all_right(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    for settings in ({}, {"accumulated": 2}):
        trainer = small_trainer(tmp_path, recipe, reward=all_right, **settings)
        before = _weights(trainer)
        trainer.train()
        assert all(torch.equal(value, before[name]) for name, value in _weights(trainer).items())
        assert [entry["grad_norm"] for entry in trainer.state.log_history if "loss" in entry] == [0.0] * 4
        assert trainer.state.log_history[0]["tokencredit/optimizer_steps"] == 0


def test_same_seed_same_weights(tmp_path: Path) -> None:
    assert torch.equal(trained(small_trainer(tmp_path, "delta")), trained(small_trainer(tmp_path, "delta")))


def test_arguments_in_trl_order_and_by_name(tmp_path: Path) -> None:
    config = quiet_config(tmp_path, per_device_train_batch_size=4, steps_per_generation=4, num_generations=4, max_steps=1)
    tokenizer = AutoTokenizer.from_pretrained(base_folder())
    by_place = CreditGRPOTrainer(base_folder(), [right_answer], config, problems(8), None, tokenizer, recipe="dapo")
    by_name = CreditGRPOTrainer(
        model=load_model(), reward_funcs=right_answer, args=config, train_dataset=problems(8), processing_class=tokenizer, recipe="dapo"
    )
    for trainer in (by_place, by_name):
        trainer.train()
        assert trainer.state.global_step == 1


def test_a_recipe_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="recipe"):
        CreditGRPOTrainer(base_folder(), right_answer, quiet_config(tmp_path), train_dataset=problems(8))  # pyright: ignore[reportCallIssue]

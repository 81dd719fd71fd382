"""Stored rollouts pushed through a real CreditGRPOTrainer: its loop, its passes and its loss; only writing and grading are looked up."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig

from conformance.cases import Case
from conformance.outcome import BatchOutcome, Outcome, batch_outcome, flat_gradient, flat_weights
from conformance.reference import SEED, batches_of
from conformance.stored import GROUP_SIZE, LIMIT, StoredBatch, base_folder
from tokencredit.integrations.trl import CreditGRPOTrainer


def load_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(base_folder(), dtype=torch.float32)


def quiet_config(folder: Path, **settings: Any) -> GRPOConfig:
    """A CPU run that leaves nothing behind and reports nothing."""
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    exact = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "seed": SEED}
    return GRPOConfig(**{"output_dir": str(folder), **quiet, **exact, **settings})


class _Gradients(TrainerCallback):
    """Before clipping: the bound of the runs here is never reached."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.found.append(flat_gradient(given["model"]))


class StoredTrainer(CreditGRPOTrainer):
    """Hands out stored rollouts in their order and keeps what was credited and planned."""

    def __init__(self, *given: Any, stored: Sequence[StoredBatch], **named: Any) -> None:
        self.stored = stored
        self.other_sampler = False
        self.tools_wrote = not all(all(written) for batch in stored for written in batch.written)
        self.made: list[BatchOutcome] = []
        self.gradients = _Gradients()
        super().__init__(*given, rollout_func=look_up, callbacks=[self.gradients], **named)

    def _credit(self, *given: Any) -> Any:
        batch = super()._credit(*given)
        if self.model.training:
            self.made.append(batch_outcome(batch.credited, batch.plan))
        return batch

    @property
    def outcome(self) -> Outcome:
        losses = tuple(entry["loss"] for entry in self.state.log_history if "loss" in entry)
        model = self.accelerator.unwrap_model(self.model)
        return Outcome(tuple(self.made), losses, torch.stack(self.gradients.found), flat_weights(model))


def look_up(prompts: list[str], trainer: StoredTrainer) -> dict[str, Any]:
    """This rank's part of the next stored batch, which must be what TRL asks for; evaluation gets the responses of the first."""
    if trainer.model.training:
        batch, first = trainer.stored[len(trainer.made)], trainer.accelerator.process_index * len(prompts)
        rows = list(range(first, first + len(prompts)))
    else:
        batch = trainer.stored[0]
        rows = [batch.prompts.index(prompt) + prompts[:place].count(prompt) for place, prompt in enumerate(prompts)]
    assert [batch.prompts[row] for row in rows] == prompts
    tools = {"env_mask": [[int(own) for own in batch.written[row]] for row in rows]} if trainer.tools_wrote else {}
    return {
        "prompt_ids": [list(batch.prompt_ids[row]) for row in rows],
        "completion_ids": [list(batch.response_ids[row]) for row in rows],
        "logprobs": [list(batch.sampler_logp[row]) for row in rows] if trainer.other_sampler else None,
        "stored_score": [None if math.isnan(batch.score[row]) else batch.score[row] for row in rows],
        **tools,
    }


def stored_score(stored_score: list[float | None], **_: Any) -> list[float | None]:
    return stored_score


def prompts_of(stored: Sequence[StoredBatch]) -> Dataset:
    return Dataset.from_list([{"prompt": prompt} for batch in stored for prompt in batch.prompts[::GROUP_SIZE]])


def stored_trainer(
    case: Case, folder: Path, *, ranks: int = 1, accumulated: int = 1, named: dict[str, Any] | None = None, **settings: Any
) -> StoredTrainer:
    stored = batches_of(case)
    slices = case.optimizer_steps * accumulated
    model = load_model()
    config = quiet_config(
        folder,
        **{
            "per_device_train_batch_size": case.groups * GROUP_SIZE // (ranks * slices),
            "gradient_accumulation_steps": accumulated,
            "steps_per_generation": slices,
            "num_iterations": case.iterations,
            "num_generations": GROUP_SIZE,
            "max_completion_length": LIMIT,
            "temperature": case.temperature,
            "mask_truncated_completions": case.without_cut,
            "max_steps": len(stored) * case.optimizer_steps * case.iterations,
            "shuffle_dataset": False,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 1e9,
            **settings,
        },
    )
    return StoredTrainer(
        model,
        stored_score,
        config,
        stored=stored,
        recipe=case.recipe,
        train_dataset=prompts_of(stored),
        processing_class=AutoTokenizer.from_pretrained(base_folder()),
        optimizers=(torch.optim.SGD(model.parameters(), lr=case.learning_rate), None),
        **(named or {}),
    )


def run_stored(case: Case, folder: Path, **settings: Any) -> Outcome:
    trainer = stored_trainer(case, folder, **settings)
    trainer.train()
    return trainer.outcome

"""Short real runs on the embedded task, with TRL's own sampling: ours beside stock TRL."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOTrainer

from conformance.outcome import flat_weights
from conformance.stored import base_folder
from in_trl.stored_run import load_model, quiet_config
from tokencredit.integrations.trl import CreditGRPOTrainer
from tokencredit.tasks.protocol import Problem, Split
from tokencredit.tasks.steps import Steps

TASK = Steps()
LIMIT = 40


def right_answer(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [TASK.grade(Problem(prompt="", answer=right), text) for right, text in zip(answer, completions, strict=True)]


def problems(count: int, split: Split = "train") -> Dataset:
    found = TASK.problems(count, split=split, seed=0)
    return Dataset.from_list([{"prompt": problem.prompt, "answer": problem.answer} for problem in found])


def small_trainer(
    folder: Path,
    recipe: Any,
    *,
    prompts: int = 4,
    group_size: int = 4,
    optimizer_steps: int = 4,
    accumulated: int = 1,
    ranks: int = 1,
    trainer_class: Any = None,
    model: Any = None,
    reward: Any = right_answer,
    named: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A recipe of None is stock TRL."""
    slices = optimizer_steps * accumulated
    config = quiet_config(
        folder,
        **{
            "per_device_train_batch_size": prompts * group_size // (ranks * slices),
            "gradient_accumulation_steps": accumulated,
            "steps_per_generation": slices,
            "num_generations": group_size,
            "max_completion_length": LIMIT,
            "max_steps": optimizer_steps,
            "learning_rate": 5e-4,
            "lr_scheduler_type": "constant",
            **settings,
        },
    )
    chosen = trainer_class or (GRPOTrainer if recipe is None else CreditGRPOTrainer)
    with_recipe = {} if recipe is None else {"recipe": recipe}
    given = {"train_dataset": problems(64), "processing_class": AutoTokenizer.from_pretrained(base_folder()), **(named or {})}
    return chosen(load_model() if model is None else model, reward, config, **given, **with_recipe)


def trained(trainer: Any, **how: Any) -> Any:
    """Its weights after training."""
    trainer.train(**how)
    return flat_weights(trainer.accelerator.unwrap_model(trainer.model))

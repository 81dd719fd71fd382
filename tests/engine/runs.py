"""Short real runs of the embedded default, for tests that look at what a run leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.forward.memory import ignore
from tokencredit.pipeline.credit import MethodState
from tokencredit.policy.policy import Policy
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.storage.checkpoints import checkpoints_in
from tokencredit.trainer.evaluate import Accuracy
from tokencredit.trainer.loop import TrainResult, prepare_batch, train
from tokencredit.trainer.signals import StopSignal
from tokencredit.trainer.step import PolicyTrainer, StepState

SMALL: dict[str, Any] = {
    "recipe": "delta",
    "steps": 4,
    "sampling": {"prompts": 6, "group_size": 4},
    "optimizer": {"steps_per_batch": 2},
    "evaluation": {"every": 2, "problems": 16, "samples": 2, "final_problems": 16, "final_samples": 2},
    "save_every": 1,
    "tokens_every": 1,
    "diagnose": {"every": 0},
}


def small_config(**changes: Any) -> TrainConfig:
    return resolve([SMALL, changes])


class Silent:
    """A listener that may act after a step."""

    def __init__(self, after: Callable[[int], None] = lambda step: None) -> None:
        self.after = after

    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        pass

    def on_step_end(self, row: dict[str, Any], seconds: float) -> None:
        self.after(row["step"])

    def on_event(self, step: int, kind: str, message: str) -> None:
        pass


def run(config: TrainConfig, folder: Path, *, resume: bool = False, stop_after: int | None = None) -> TrainResult:
    stop = StopSignal()

    def maybe_stop(step: int) -> None:
        if step == stop_after:
            stop.request(2)

    return train(config, folder, Silent(maybe_stop), stop, resume=resume)


def trainer_of(config: TrainConfig) -> PolicyTrainer:
    """For one training step after another with nothing recorded."""
    return PolicyTrainer(config, source=config.model)


def collected_by(trainer: PolicyTrainer, number: int = 0) -> CollectedBatch:
    """Sampled, graded, scored, with the extra evidence of the recipe."""
    batch = StepState(number=number)
    trainer.collect(batch)
    trainer.score(batch)
    trainer.sample_extra(batch)
    assert batch.collected is not None
    return batch.collected


def planned_by(trainer: PolicyTrainer, number: int = 0, collected: CollectedBatch | None = None) -> StepState:
    """Credited and planned, before the weights move."""
    batch = StepState(number=number, collected=collected)
    prepare_batch(trainer, batch, MethodState(), ignore)
    return batch


CLOCKS = {"timing.jsonl", "result.json", "clocks.json", "manifest.json", "report.html", "lock", "resumes.jsonl"}
"""Files that hold a clock, or the hash of one, or say who ran when."""


def newest(folder: Path) -> Path:
    return checkpoints_in(folder / "checkpoints")[-1][1]


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a run but the clocks and the older checkpoints: when a run was stopped decides which of those there are.

    Nor the model to hand on: the command writes it, of a checkpoint, when a run has finished.
    """
    others = {folder / "model", *(path for _, path in checkpoints_in(folder / "checkpoints")[:-1])}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in CLOCKS and not others & set(path.parents))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rows_of(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(newest(folder)).state_dict()


def same_weights(one: Path, two: Path) -> bool:
    first, second = weights(one), weights(two)
    return all(torch.equal(first[name], second[name]) for name in first)

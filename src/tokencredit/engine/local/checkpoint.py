"""Checkpoints: ordinary `transformers` folders, plus what a resume needs. safetensors and JSON only."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tokencredit.engine.local.policy import Policy
from tokencredit.errors import ConfigError

OPTIMIZER_FILE, STATE_FILE = "optimizer.safetensors", "state.json"


def kept_name(step: int) -> str:
    """Folder of a checkpoint that is kept for good."""
    return f"step-{step:06}"


def save_model(policy: Policy, folder: Path) -> None:
    """Replace `folder` by the policy as it is; a half-written one is never left under that name."""
    _swap(_write_model(policy, folder), folder)


def _write_model(policy: Policy, folder: Path) -> Path:
    """Into a folder beside `folder`, which takes its name only when all is written."""
    fresh = folder.with_name(folder.name + ".partial")
    shutil.rmtree(fresh, ignore_errors=True)
    policy.model.save_pretrained(fresh)
    policy.tokenizer.save_pretrained(fresh)
    return fresh


def _beside(folder: Path) -> Path:
    return folder.with_name(folder.name + ".old")


def restore_swapped(folder: Path) -> None:
    """A run killed between the two renames of a swap has its last good checkpoint under the old name."""
    if not folder.exists() and _beside(folder).is_dir():
        _beside(folder).rename(folder)


def _swap(fresh: Path, folder: Path) -> None:
    old = _beside(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands after a finished training step. All else follows from the config and the step number."""

    step: int
    rollouts_used: int
    best_step: int
    best_accuracy: float
    before: dict[str, float]
    stage_state: dict[str, dict[str, Any]]
    seconds: dict[str, float]


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": value.contiguous() for index, values in state.items() for name, value in values.items()}


def save_checkpoint(policy: Policy, optimizer: torch.optim.Optimizer, progress: Progress, folder: Path) -> None:
    fresh = _write_model(policy, folder)
    save_file(_optimizer_tensors(optimizer), fresh / OPTIMIZER_FILE)
    fields = {name: getattr(progress, name) for name in Progress.__dataclass_fields__}
    (fresh / STATE_FILE).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    _swap(fresh, folder)


def load_progress(folder: Path) -> Progress:
    try:
        return Progress(**json.loads((folder / STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        raise ConfigError(f"checkpoint {folder} cannot be resumed: {problem}") from None


def load_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    try:
        tensors = load_file(folder / OPTIMIZER_FILE)
    except (OSError, SafetensorError) as problem:
        raise ConfigError(f"checkpoint {folder} cannot be resumed: {OPTIMIZER_FILE}: {problem}") from None
    for key, value in tensors.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

"""Checkpoints: ordinary `transformers` folders plus the state a resume needs, in safetensors and JSON, saved atomically.

A checkpoint between two optimizer steps of a batch also holds the batch; so does the dump of a refused batch.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tokencredit.errors import ConfigError, StorageError
from tokencredit.optim.update import as_done
from tokencredit.pipeline.credit import ExtraEvidence, MethodState
from tokencredit.policy.lora import has_adapters, merged_state, save_adapters
from tokencredit.policy.policy import Policy
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.storage.atomic import atomic_folder, remove_folder
from tokencredit.storage.checkpoints import CheckpointPosition, checkpoints_in, to_keep
from tokencredit.tasks import Problem
from tokencredit.trainer.rng_state import generator_states, restore_generators
from tokencredit.trainer.step import StepState
from tokencredit.types import Credited, Rollouts, Scored, StepPlan, StepResult, TokenScores

TENSORS, PLAIN = "batch.safetensors", "batch.json"
OF_ROLLOUTS = ("tokens", "mask", "group", "behavior_logp", "finished")
OF_CREDIT = ("old_logp", "entropy", "advantage", "coefficient", "credit", "correction")


def save_batch(folder: Path, batch: StepState) -> None:
    """Write the collected rollouts and, for a planned batch, its credit, plan and optimizer steps.

    Hidden states are left out: a pass with the same weights recomputes them.
    """
    collected = batch.collected
    assert collected is not None
    rollouts = collected.rollouts
    tensors: dict[str, Tensor | None] = {name: getattr(rollouts, name) for name in OF_ROLLOUTS}
    tensors |= {"score": collected.score, "evidence/logp": collected.evidence.logp, "evidence/entropy": collected.evidence.entropy}
    tensors |= {"reference_logp": collected.reference_logp, "bonus": collected.bonus}
    tensors |= {f"sampled/{name}": value for name, value in collected.sampled._asdict().items()}
    plain: dict[str, Any] = {
        "prompts": rollouts.prompts,
        "problems": [asdict(problem) for problem in collected.problems],
        "rollouts_used": collected.rollouts_used,
        "responses": collected.responses,
        "extra": dict(collected.extra),
        "ungraded": dict(collected.ungraded),
        "taken": asdict(batch.result),
    }
    if batch.plan is not None and batch.credited is not None and batch.method_state is not None:
        credited = batch.credited
        tensors |= {"reward": credited.scored.reward} | {f"credit/{name}": getattr(credited, name) for name in OF_CREDIT}
        plain |= {"plan": batch.plan.to_json(), "state": {name: dict(value) for name, value in batch.method_state._asdict().items()}}
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items() if value is not None}, folder / TENSORS)
    (folder / PLAIN).write_text(json.dumps(plain) + "\n", encoding="utf-8")


def load_batch(folder: Path, device: torch.device, *, number: int) -> StepState:
    """The batch of training step `number`, counted from 0."""
    tensors = {name: value.to(device) for name, value in load_file(folder / TENSORS).items()}
    plain = json.loads((folder / PLAIN).read_text(encoding="utf-8"))
    rollouts = Rollouts(prompts=tuple(tuple(prompt) for prompt in plain["prompts"]), **{name: tensors[name] for name in OF_ROLLOUTS})
    collected = CollectedBatch(
        problems=[Problem(**problem) for problem in plain["problems"]],
        rollouts=rollouts,
        score=tensors["score"],
        evidence=TokenScores(tensors["evidence/logp"], tensors["evidence/entropy"], None),
        rollouts_used=plain["rollouts_used"],
        responses=plain["responses"],
        reference_logp=tensors.get("reference_logp"),
        bonus=tensors.get("bonus"),
        sampled=ExtraEvidence(**{name: tensors.get(f"sampled/{name}") for name in ExtraEvidence._fields}),
        extra=plain["extra"],
        ungraded=plain["ungraded"],
    )
    result = StepResult(**{field.name: tuple(plain["taken"][field.name]) for field in fields(StepResult)})
    batch = StepState(number=number, collected=collected, done=as_done(result))
    if "plan" in plain:
        batch.credited = Credited(
            scored=Scored(rollouts=rollouts, score=collected.score, reward=tensors["reward"]),
            reference_logp=collected.reference_logp,
            **{name: tensors.get(f"credit/{name}") for name in OF_CREDIT},  # pyright: ignore[reportArgumentType]
        )
        batch.plan, batch.method_state = StepPlan.from_json(plain["plan"]), MethodState(**plain["state"])
    return batch


OPTIMIZER_FILE, GENERATORS_FILE, STATE_FILE, CLOCKS_FILE = "optimizer.safetensors", "generators.safetensors", "state.json", "clocks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """The state of a run after a training step. All else follows from the config, the step number and the batch in progress."""

    step: int
    optimizer_step: int = 0
    """Optimizer steps taken in the next training step; its batch is in the same checkpoint."""
    rollouts_used: int
    best_step: int
    best_accuracy: float
    before: dict[str, float]
    stage_state: dict[str, dict[str, Any]]
    guard: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float]

    @property
    def position(self) -> CheckpointPosition:
        return CheckpointPosition(self.step, self.optimizer_step)

    @property
    def methods(self) -> MethodState:
        return MethodState(**self.stage_state)


def save_model(policy: Policy, folder: Path) -> None:
    """Save the policy alone."""
    with writing(folder), atomic_folder(folder) as fresh:
        _write_model(policy, fresh)


def save_checkpoint(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    parent: Path,
    pending: StepState | None = None,
    generators: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Save the state of a run under the name of its position; an existing checkpoint of that name already holds the same state.

    `generators`: the global generators at that position, if they have been used since.
    """
    folder = parent / state.position.name
    if not folder.exists():
        with writing(folder), atomic_folder(folder) as fresh:
            write_state(policy, optimizer, state, fresh, generators)
            if pending is not None:
                save_batch(fresh, pending)
    return folder


def write_state(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    fresh: Path,
    generators: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write everything but the batch into a folder that is not yet renamed into place.

    Timings have a separate file, because everything else is equal in every run of a seed.
    """
    _write_model(policy, fresh)
    save_file(_optimizer_tensors(optimizer), fresh / OPTIMIZER_FILE)
    save_file(dict(generators or generator_states()), fresh / GENERATORS_FILE)
    record = asdict(state)
    seconds = record.pop("seconds")
    for name, value in ((STATE_FILE, record), (CLOCKS_FILE, seconds)):
        (fresh / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def prune(parent: Path, *, last: int, every: int) -> None:
    """Remove checkpoints that the settings do not keep; call it after a newer one is saved."""
    found = dict(checkpoints_in(parent))
    best: dict[CheckpointPosition, int] = {}
    for position, path in sorted(found.items())[-last:]:
        # An unreadable checkpoint does not name a best step.
        with suppress(ConfigError):
            best[position] = load_train_state(path).best_step
    for position in found.keys() - to_keep(found, best, last=last, every=every):
        remove_folder(found[position])


def load_train_state(folder: Path) -> TrainState:
    with _reading(folder):
        stored: Mapping[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        seconds = json.loads((folder / CLOCKS_FILE).read_text(encoding="utf-8"))
        return TrainState(**{name.name: stored[name.name] for name in fields(TrainState) if name.name != "seconds"}, seconds=seconds)


def load_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    with _reading(folder):
        for key, value in load_file(folder / OPTIMIZER_FILE).items():
            index, name = key.split("/")
            state.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def load_generators(folder: Path) -> None:
    with _reading(folder):
        restore_generators(load_file(folder / GENERATORS_FILE))


def load_pending(folder: Path, device: torch.device) -> StepState | None:
    """The batch of a checkpoint in the middle of a training step; None for other checkpoints."""
    if not (folder / PLAIN).is_file():
        return None
    number = load_train_state(folder).step
    with _reading(folder):
        return load_batch(folder, device, number=number)


def _write_model(policy: Policy, fresh: Path) -> None:
    if has_adapters(policy.model):
        policy.model.save_pretrained(fresh, state_dict=merged_state(policy.model))
        save_adapters(policy.model, fresh)
    else:
        policy.model.save_pretrained(fresh)
    policy.tokenizer.save_pretrained(fresh)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": value.contiguous() for index, values in state.items() for name, value in values.items()}


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise ConfigError(f"checkpoint {folder} cannot be used: {problem}") from None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn safetensors' own error, such as a full disk, into a StorageError."""
    try:
        yield
    except SafetensorError as problem:
        raise StorageError(f"{folder} cannot be written: {problem}") from None

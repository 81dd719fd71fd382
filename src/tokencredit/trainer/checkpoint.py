"""Checkpoints: ordinary `transformers` folders, plus what a resume needs. safetensors and JSON only; published whole or not at all.

A batch as files, safetensors and JSON: kept in a checkpoint between two optimizer steps, and dumped when a guard refuses it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tokencredit.errors import ConfigError, StorageError
from tokencredit.pipeline.credit import ExtraEvidence, MethodState
from tokencredit.policy.lora import has_adapters, merged_state, save_adapters
from tokencredit.policy.policy import Policy
from tokencredit.storage.atomic import atomic_folder, remove_folder
from tokencredit.storage.checkpoints import Place, checkpoints_in, to_keep
from tokencredit.tasks import Problem
from tokencredit.trainer.rng_state import generator_states, restore_generators
from tokencredit.trainer.step import NOTHING_TAKEN, GatheredBatch, PlannedBatch
from tokencredit.types import Credited, Rollouts, Scored, StepPlan, StepResult, TokenScores

TENSORS, WORDS = "batch.safetensors", "batch.json"
OF_ROLLOUTS = ("tokens", "mask", "group", "behavior_logp", "finished")
OF_CREDIT = ("old_logp", "entropy", "advantage", "coefficient", "credit", "correction")


class StoredBatch(NamedTuple):
    gathered: GatheredBatch
    """Without hidden states: they are found again in a pass over the same weights."""
    planned: PlannedBatch | None
    taken: StepResult
    """What the optimizer steps taken so far did."""


def save_batch(folder: Path, gathered: GatheredBatch, planned: PlannedBatch | None = None, taken: StepResult = NOTHING_TAKEN) -> None:
    rollouts, credited = gathered.rollouts, None if planned is None else planned.credited
    found: dict[str, Tensor | None] = {name: getattr(rollouts, name) for name in OF_ROLLOUTS}
    found |= {"score": gathered.score, "evidence/logp": gathered.evidence.logp, "evidence/entropy": gathered.evidence.entropy}
    found |= {"reference_logp": gathered.reference_logp, "bonus": gathered.bonus}
    found |= {f"sampled/{name}": value for name, value in gathered.sampled._asdict().items()}
    words: dict[str, Any] = {
        "prompts": rollouts.prompts,
        "problems": [asdict(problem) for problem in gathered.problems],
        "rollouts_used": gathered.rollouts_used,
        "responses": gathered.responses,
        "extra": dict(gathered.extra),
        "ungraded": dict(gathered.ungraded),
        "taken": asdict(taken),
    }
    if planned is not None and credited is not None:
        found |= {"reward": credited.scored.reward} | {f"credit/{name}": getattr(credited, name) for name in OF_CREDIT}
        words |= {"plan": planned.plan.to_json(), "state": {name: dict(value) for name, value in planned.state._asdict().items()}}
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in found.items() if value is not None}, folder / TENSORS)
    (folder / WORDS).write_text(json.dumps(words) + "\n", encoding="utf-8")


def load_batch(folder: Path, device: torch.device) -> StoredBatch:
    tensors = {name: value.to(device) for name, value in load_file(folder / TENSORS).items()}
    words = json.loads((folder / WORDS).read_text(encoding="utf-8"))
    rollouts = Rollouts(prompts=tuple(tuple(prompt) for prompt in words["prompts"]), **{name: tensors[name] for name in OF_ROLLOUTS})
    gathered = GatheredBatch(
        problems=[Problem(**problem) for problem in words["problems"]],
        rollouts=rollouts,
        score=tensors["score"],
        evidence=TokenScores(tensors["evidence/logp"], tensors["evidence/entropy"], None),
        rollouts_used=words["rollouts_used"],
        responses=words["responses"],
        reference_logp=tensors.get("reference_logp"),
        bonus=tensors.get("bonus"),
        sampled=ExtraEvidence(**{name: tensors.get(f"sampled/{name}") for name in ExtraEvidence._fields}),
        extra=words["extra"],
        ungraded=words["ungraded"],
    )
    taken = StepResult(**{field.name: tuple(words["taken"][field.name]) for field in fields(StepResult)})
    return StoredBatch(gathered, _planned(gathered, tensors, words) if "plan" in words else None, taken)


def _planned(gathered: GatheredBatch, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> PlannedBatch:
    credited = Credited(
        scored=Scored(rollouts=gathered.rollouts, score=gathered.score, reward=tensors["reward"]),
        reference_logp=gathered.reference_logp,
        **{name: tensors.get(f"credit/{name}") for name in OF_CREDIT},  # pyright: ignore[reportArgumentType]
    )
    return PlannedBatch(gathered, credited, StepPlan.from_json(words["plan"]), MethodState(**words["state"]))


OPTIMIZER_FILE, GENERATORS_FILE, STATE_FILE, CLOCKS_FILE = "optimizer.safetensors", "generators.safetensors", "state.json", "clocks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands. All else follows from the config, the step number and the batch that is being worked on."""

    step: int
    optimizer_step: int = 0
    """Optimizer steps taken of the next training step; its batch is kept beside this."""
    rollouts_used: int
    best_step: int
    best_accuracy: float
    before: dict[str, float]
    stage_state: dict[str, dict[str, Any]]
    guard: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float]

    @property
    def place(self) -> Place:
        return Place(self.step, self.optimizer_step)


class BufferedBatch(NamedTuple):
    """The batch a run was working on, with what its optimizer steps did so far."""

    gathered: GatheredBatch
    planned: PlannedBatch
    taken: StepResult


def save_model(policy: Policy, folder: Path) -> None:
    """Publish the policy alone."""
    with writing(folder), atomic_folder(folder) as fresh:
        _write_model(policy, fresh)


def save_checkpoint(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    parent: Path,
    buffered: BufferedBatch | None = None,
    generators: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Publish the state of a run under the name of its place; one that is there already is the same.

    `generators` are the global ones as they were at that place, if they have been drawn from since.
    """
    folder = parent / progress.place.name
    if not folder.exists():
        with writing(folder), atomic_folder(folder) as fresh:
            write_state(policy, optimizer, progress, fresh, generators)
            if buffered is not None:
                save_batch(fresh, *buffered)
    return folder


def write_state(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    fresh: Path,
    generators: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Everything but the batch, into a folder that is not published yet. Clocks are apart: all else is the same in every run of a seed."""
    _write_model(policy, fresh)
    save_file(_optimizer_tensors(optimizer), fresh / OPTIMIZER_FILE)
    save_file(dict(generators or generator_states()), fresh / GENERATORS_FILE)
    told = asdict(progress)
    seconds = told.pop("seconds")
    for name, value in ((STATE_FILE, told), (CLOCKS_FILE, seconds)):
        (fresh / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def prune(parent: Path, *, last: int, every: int) -> None:
    """Remove what nobody asked to keep, after a newer checkpoint is published."""
    found = dict(checkpoints_in(parent))
    best: dict[Place, int] = {}
    for place, path in sorted(found.items())[-last:]:
        # One that cannot be read has no say in what is kept.
        with suppress(ConfigError):
            best[place] = load_progress(path).best_step
    for place in found.keys() - to_keep(found, best, last=last, every=every):
        remove_folder(found[place])


def load_progress(folder: Path) -> Progress:
    with _reading(folder):
        told: Mapping[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        seconds = json.loads((folder / CLOCKS_FILE).read_text(encoding="utf-8"))
        return Progress(**{name.name: told[name.name] for name in fields(Progress) if name.name != "seconds"}, seconds=seconds)


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


def load_buffered(folder: Path, device: torch.device) -> StoredBatch | None:
    if not (folder / WORDS).is_file():
        return None
    with _reading(folder):
        return load_batch(folder, device)


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
    """A disk that is full is told by safetensors in an error of its own."""
    try:
        yield
    except SafetensorError as problem:
        raise StorageError(f"{folder} cannot be written: {problem}") from None

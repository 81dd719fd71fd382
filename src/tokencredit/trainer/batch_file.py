"""A batch as files, safetensors and JSON: kept in a checkpoint between two optimizer steps, and dumped when a guard refuses it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tokencredit.forward.padded import TokenEvidence
from tokencredit.pipeline.credit import SampledEvidence, StageState
from tokencredit.tasks import Problem
from tokencredit.trainer.batch import NOTHING_TAKEN, GatheredBatch, PlannedBatch
from tokencredit.types import Credited, Rollouts, Scored, StepPlan, StepResult

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
        evidence=TokenEvidence(tensors["evidence/logp"], tensors["evidence/entropy"], None),
        rollouts_used=words["rollouts_used"],
        responses=words["responses"],
        reference_logp=tensors.get("reference_logp"),
        bonus=tensors.get("bonus"),
        sampled=SampledEvidence(**{name: tensors.get(f"sampled/{name}") for name in SampledEvidence._fields}),
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
    return PlannedBatch(gathered, credited, StepPlan.from_json(words["plan"]), StageState(**words["state"]))

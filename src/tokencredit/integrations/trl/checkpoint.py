"""Our file in a TRL checkpoint, one per rank, so that a resume in the middle of a batch is exact."""

import os
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig

from tokencredit.config import Recipe
from tokencredit.errors import ConfigError
from tokencredit.objective import TokenInputs
from tokencredit.pipeline.credit import MethodState
from tokencredit.pipeline.distributed import loadable
from tokencredit.pipeline.microbatch import MicroBatch

FORMAT = 1
BATCH_SETTINGS = ("generation_batch_size", "num_generations", "steps_per_generation", "gradient_accumulation_steps", "num_iterations")
"""Settings that determine the position of a micro-step in a batch of generations."""


def _path(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"tokencredit_{rank}.pt"


def save(
    checkpoint: Path,
    *,
    rank: int,
    ranks: int,
    recipe: Recipe,
    args: GRPOConfig,
    step: int,
    state: MethodState,
    buffer: list[dict[str, Any]] | None,
) -> None:
    """Plain tensors and numbers only, so that loading runs no pickled code. The file is renamed into place once it is complete."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    plain = None if buffer is None else [{**rows, "tokencredit": _plain(rows["tokencredit"])} for rows in buffer]
    content = {
        "format": FORMAT,
        "ranks": ranks,
        "recipe": recipe.model_dump_json(),
        "settings": {name: getattr(args, name) for name in BATCH_SETTINGS},
        "step": step,
        "state": {name: dict(part) for name, part in state._asdict().items()},
        "buffer": plain,
    }
    target = _path(checkpoint, rank)
    partial = target.with_suffix(".part")
    torch.save(content, partial)
    os.replace(partial, target)


def load(
    checkpoint: Path, *, rank: int, ranks: int, recipe: Recipe, args: GRPOConfig, device: torch.device
) -> tuple[int, MethodState, list[dict[str, Any]] | None]:
    """Micro-steps done, the state of the methods, and the remaining micro-batches."""
    source = _path(checkpoint, rank)
    if not source.is_file():
        raise ConfigError(
            f"checkpoint {checkpoint} has no {source.name}: it was written by another trainer or with fewer processes; "
            "give its folder as the model instead of resuming"
        )
    content = torch.load(source, map_location=loadable(device), weights_only=True)
    if content["format"] != FORMAT:
        raise ConfigError(f"{source} has format {content['format']}; this version reads format {FORMAT}")
    if content["ranks"] != ranks:
        raise ConfigError(f"checkpoint {checkpoint} was written by {content['ranks']} processes, but there are {ranks}; use as many")
    if content["recipe"] != recipe.model_dump_json():
        raise ConfigError(f"checkpoint {checkpoint} was written with another recipe; resume with the same one")
    for name, before in content["settings"].items():
        if getattr(args, name) != before:
            raise ConfigError(f"{name} is {getattr(args, name)}, but checkpoint {checkpoint} was written with {before}; use the same")
    buffer = content["buffer"]
    restored = None if buffer is None else [{**rows, "tokencredit": _micro_batch(rows["tokencredit"])} for rows in buffer]
    return content["step"], MethodState(**content["state"]), restored


def _plain(batch: MicroBatch) -> dict[str, Any]:
    return {"inputs": batch.inputs._asdict(), "weight": batch.weight, "denominator": batch.denominator}


def _micro_batch(plain: dict[str, Any]) -> MicroBatch:
    return MicroBatch(TokenInputs(**plain["inputs"]), plain["weight"], plain["denominator"])

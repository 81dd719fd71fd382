"""Damaged model folders, through the one function that loads them."""

import json
import shutil
import struct
from functools import cache
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file

from fault.fuzz import Trial, damage_values, damaged, flip_bits, lasting_folder
from tiny import tiny_policy
from tokencredit.errors import ConfigError, GuardError
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample

WEIGHTS = "model.safetensors"


@cache
def _saved() -> Path:
    folder = lasting_folder()
    policy = tiny_policy(torch.float32)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def model_copy(place: Path) -> Path:
    return shutil.copytree(_saved(), place / "model")


def spoil_weights(rng: Random, path: Path) -> None:
    """A tensor of another shape, another type, not a number, gone, or one too many."""
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    old = tensors[name]
    how = rng.choice(("shape", "type", "nan", "gone", "more"))
    if how == "gone":
        del tensors[name]
    elif how == "shape":
        tensors[name] = torch.zeros(*old.shape, 2) if rng.random() < 0.5 else old[:-1].clone()
    else:
        changed = {"type": old.to(rng.choice((torch.int8, torch.bool, torch.bfloat16, torch.float64))), "nan": old * torch.nan, "more": old}
        tensors[f"{name}.extra" if how == "more" else name] = changed[how].clone()
    save_file(tensors, path, metadata={"format": "pt"})


def stretch_header(rng: Random, path: Path) -> None:
    """The length that a safetensors file begins with, made up."""
    content = path.read_bytes()
    path.write_bytes(struct.pack("<Q", rng.choice((0, 1, 2**20, 2**40, 2**63, 2**64 - 1))) + content[8:])


def model_folder(rng: Random, place: Path) -> Trial:
    folder = model_copy(place)
    path = rng.choice(sorted(folder.iterdir()))
    if path.name == WEIGHTS and rng.random() < 0.8:
        rng.choice((spoil_weights, stretch_header))(rng, path)
    elif path.suffix == ".json" and rng.random() < 0.6:
        path.write_text(json.dumps(damage_values(rng, json.loads(path.read_text()))))
    elif rng.random() < 0.1:
        path.unlink()
    else:
        path.write_bytes((flip_bits if rng.random() < 0.3 else damaged)(rng, path.read_bytes()))
    return Trial(lambda: _load(folder), (str(folder),))


def _load(folder: Path) -> None:
    """Loaded weights are those of the file, all of them, and a word can be sampled or the guard says why not."""
    policy = load_policy(str(folder), device=torch.device("cpu"), dtype="float32")
    stored, loaded = load_file(folder / WEIGHTS), policy.model.state_dict()
    for name, tensor in loaded.items():
        source = stored.get(name)
        if source is None and name == "lm_head.weight":
            source = stored.get("model.embed_tokens.weight")
        assert source is not None, f"{name} is not in the file, yet it has numbers"
        assert torch.equal(source.float().nan_to_num(), tensor.nan_to_num()), f"{name} has other numbers than in the file"
    try:
        sample(policy, [[3, 4]], SamplingParams(group_size=2, max_new_tokens=3, seed=0))
    except GuardError as stopped:
        raise ConfigError(f"{folder}: {stopped}") from None


KINDS = {"model folder": model_folder}

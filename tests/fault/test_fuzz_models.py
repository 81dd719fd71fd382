"""Model folders that hold no model: refused in words, and nothing in them is ever run."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fault.fuzz_models import WEIGHTS, model_copy
from tokencredit.errors import ConfigError, GuardError
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample


def loaded(folder: Path) -> Policy:
    return load_policy(str(folder), device=torch.device("cpu"), dtype="float32")


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def edit_json(name: str, **changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def cut_weights(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-50])


def header_of(size: int) -> Callable[[Path], None]:
    def stretch(folder: Path) -> None:
        path = folder / WEIGHTS
        path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])

    return stretch


def another_shape(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.norm.weight"] = torch.ones(3)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def one_tensor_less(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.norm.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (without("config.json"), "has no config.json"),
    "an empty config": (write("config.json", b""), "cannot be loaded as a causal LM"),
    "a config that is a list": (write("config.json", b"[1]"), "cannot be loaded as a causal LM"),
    "a config of noise": (write("config.json", b"\xff\xfe\x00"), "cannot be loaded as a causal LM"),
    "a config without a kind": (write("config.json", b"{}"), "cannot be loaded as a causal LM"),
    "a kind nobody knows": (edit_json("config.json", model_type="perceptron"), "cannot be loaded as a causal LM"),
    "no weights": (without(WEIGHTS), "cannot be loaded as a causal LM"),
    "weights of nothing": (write(WEIGHTS, b""), "cannot be loaded as a causal LM"),
    "weights cut off": (cut_weights, "cannot be loaded as a causal LM"),
    "weights of noise": (write(WEIGHTS, b"\x01" * 300), "cannot be loaded as a causal LM"),
    "a header of 2^63 bytes": (header_of(2**63), "cannot be loaded as a causal LM"),
    "a header of no bytes": (header_of(0), "cannot be loaded as a causal LM"),
    "a tensor of another shape": (another_shape, "cannot be loaded as a causal LM"),
    "a weight that is missing": (one_tensor_less, "lacks 1 weights of its config.json, model.norm.weight among them"),
    "a tokenizer of noise": (write("tokenizer.json", b"\xff{"), "cannot be loaded as a causal LM"),
    "an end token nobody has": (
        edit_json("generation_config.json", eos_token_id=10**6),
        "eos_token_id is 1000000; it must be a token id below",
    ),
    "an end token that is a word": (edit_json("generation_config.json", eos_token_id="end"), "model folder"),
    "another width": (edit_json("config.json", hidden_size=32), "cannot be loaded as a causal LM"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_model_folder_is_refused_in_words(tmp_path: Path, name: str) -> None:
    folder = model_copy(tmp_path)
    damage, words = DAMAGE[name]
    damage(folder)
    with pytest.raises(ConfigError) as caught:
        loaded(folder)
    assert words in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_refused_and_never_unpickled(tmp_path: Path, name: str) -> None:
    folder = model_copy(tmp_path)
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "went-off")))
    with pytest.raises(ConfigError, match="cannot be loaded as a causal LM"):
        loaded(folder)
    assert not (tmp_path / "went-off").exists()
    pickle.loads((folder / name).read_bytes())
    assert (tmp_path / "went-off").exists(), "the bomb itself is a dud"


def test_pickled_weights_beside_others_are_left_alone(tmp_path: Path) -> None:
    folder = model_copy(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "went-off")))
    weights = loaded(folder).model.state_dict()
    assert torch.equal(weights["model.norm.weight"], load_file(folder / WEIGHTS)["model.norm.weight"])
    assert not (tmp_path / "went-off").exists()


def test_weights_that_are_no_numbers_stop_the_first_sample(tmp_path: Path) -> None:
    folder = model_copy(tmp_path)
    tensors = {name: tensor * torch.nan for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(GuardError, match="not finite while sampling"):
        sample(loaded(folder), [[3]], SamplingParams(group_size=1, max_new_tokens=2, seed=0))


def test_several_end_tokens_are_all_taken(tmp_path: Path) -> None:
    folder = model_copy(tmp_path)
    edit_json("generation_config.json", eos_token_id=[1, 4])(folder)
    assert loaded(folder).end_tokens == (1, 4)

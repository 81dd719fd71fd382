"""LoRA: the base is frozen, and low-rank adapters of its linear layers are trained. The only module that imports peft.

The class of the model does not change. A checkpoint holds merged weights, which load without peft, and the adapters for a resume.
"""

import hashlib
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tokencredit.config.train import Lora, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import trainable_parameters
from tokencredit.kernels import at_least_float32
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.seeds import derive_seed

ADAPTER_FILE = "adapter.safetensors"
ADAPTER_INFIX, WRAPPED = ".lora_", ".base_layer"
"""peft's infix in the names of its parameters, and its suffix for the layers it wraps."""


def load_trained(config: TrainConfig, source: str, *, device: torch.device) -> Policy:
    """The policy of a run, from its model or a checkpoint. With LoRA the base is the run's model in both cases."""
    policy = load_policy(
        config.model if config.lora.rank else source,
        device=device,
        dtype=config.dtype,
        weights=config.weights,
        trust_remote_code=config.trust_remote_code,
    )
    add_adapters(policy.model, config.lora, seed=config.seed)
    if config.lora.rank and source != config.model:
        load_adapters(policy.model, Path(source))
    return policy


def add_adapters(model: PreTrainedModel, lora: Lora, *, seed: int) -> None:
    """Freeze the model and add adapters, which start as the identity, to its layers; rank 0 changes nothing."""
    if lora.rank == 0:
        return
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigError(f'lora.rank is {lora.rank} but peft is not installed; pip install "tokencredit[peft]", or set it to 0') from None
    full = max(min(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2)
    if lora.rank > full:
        raise ConfigError(
            f"lora.rank is {lora.rank} but no matrix of this model has a rank above {full}; give less, or 0 to train every weight"
        )
    names = [name.strip() for name in lora.targets.split(",")]
    # peft draws from the CPU's global generator, whose state is restored afterwards.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.default_generator.manual_seed(derive_seed(seed, "lora"))
        # peft warns that it detected the matrix layout of GPT-2 itself.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to False")
        targets = lora.targets if lora.targets == "all-linear" else names
        try:
            # peft accepts any number as alpha; its annotation says int.
            alpha = cast(int, lora.alpha)
            inject_adapter_in_model(LoraConfig(r=lora.rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets), model)
        except ValueError as problem:
            raise ConfigError(f"lora.targets is {lora.targets!r}, which this model cannot take: {str(problem)[:300]}") from None
    _check_targets(model, lora.targets, [] if targets == "all-linear" else names)
    for parameter in trainable_parameters(model).values():
        # peft creates adapters in the dtype of the base, whose rounding would drop small updates.
        parameter.data = at_least_float32(parameter.data)
    model.eval()


def _check_targets(model: PreTrainedModel, given: str, names: list[str]) -> None:
    adapted = [f".{name}" for name, module in model.named_modules() if _is_adapted(module)]
    for name in names:
        if not name or not any(module.endswith(f".{name}") for module in adapted):
            raise ConfigError(f"lora.targets is {given!r}, but {name!r} is no layer of this model; name its linear layers, or 'all-linear'")
    if _is_adapted(model.get_input_embeddings()) or _is_adapted(model.get_output_embeddings()):
        raise ConfigError(
            f"lora.targets is {given!r}, which names the embedding or the LM head; these are not trained with LoRA: leave them out"
        )


def _is_adapted(module: torch.nn.Module | None) -> bool:
    return hasattr(module, "get_delta_weight")


def has_adapters(model: PreTrainedModel) -> bool:
    return any(_is_adapted(module) for module in model.modules())


@torch.no_grad()
def merged_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state dict of the model without adapters: their product is added to the weights, in the dtype of the weights."""
    plain = {name.replace(WRAPPED, ""): value for name, value in model.state_dict().items() if ADAPTER_INFIX not in name}
    for name, module in model.named_modules():
        if _is_adapted(module):
            added = cast(Any, module).get_delta_weight("default")
            # Merged on the CPU: the device may not hold a second model. Other weights are not copied, because they may be tied.
            plain[f"{name}.weight"] = (plain[f"{name}.weight"].to(added) + added).to(plain[f"{name}.weight"].dtype).cpu()
    return plain


def save_adapters(model: PreTrainedModel, folder: Path) -> None:
    adapters = {name: parameter.detach().contiguous() for name, parameter in trainable_parameters(model).items()}
    save_file(adapters, folder / ADAPTER_FILE, metadata={"base": base_checksum(model)})


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Load into the model's adapters; adapters of another base or of other layers are refused."""
    path = folder / ADAPTER_FILE
    if not path.is_file():
        raise ConfigError(f"checkpoint {folder} holds no {ADAPTER_FILE}; it is not from a run with lora.rank above 0")
    trained, stored = trainable_parameters(model), load_file(path)
    with safe_open(path, framework="pt") as file:
        base = (file.metadata() or {}).get("base")
    if {name: value.shape for name, value in stored.items()} != {name: value.shape for name, value in trained.items()}:
        raise ConfigError(f"checkpoint {folder} cannot be used: its adapters are not those of this model and lora.rank")
    if base != base_checksum(model):
        raise ConfigError(f"checkpoint {folder} cannot be used: the weights of the run's model are not those it began with")
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(stored[name])


def base_checksum(model: PreTrainedModel) -> str:
    """Checksum of the frozen weights: sums of their bits as integers, independent of order and device."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [
        (name, int(value.detach().contiguous().view(integer[value.element_size()]).sum(dtype=torch.int64)))
        for name, value in model.named_parameters()
        if not value.requires_grad
    ]
    return hashlib.sha256(repr(sums).encode()).hexdigest()

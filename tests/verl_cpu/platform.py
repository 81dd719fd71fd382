"""Makes stock verl run without an accelerator; verl imports this in every process through VERL_USE_EXTERNAL_MODULES.

The engine needs no entry of its own: VERL_ENGINE_DEVICE=cuda finds the one that verl, or a plug-in, registered for CUDA.
"""

import os
from functools import partialmethod, wraps
from types import ModuleType
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_cpu import integrity
from verl_cpu.when_imported import when_imported

ROLLOUT = "huggingface"
POLL_SECONDS = 0.05


def _cpu_as_device() -> ModuleType:
    """What verl asks of `torch.cuda`: `torch.cpu`, and a memory that is never used."""
    module = ModuleType("cpu_as_device")
    unused = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    vars(module).update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("_")})
    vars(module).update({name: lambda *_: 0 for name in unused})
    vars(module).update(
        mem_get_info=lambda *_: (0, 0), empty_cache=lambda: None, get_device_name=lambda *_: "CPU", is_available=lambda: False
    )
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    """Ray hands out logical GPUs, torch computes on the CPU and talks through gloo."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _cpu_as_device()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _name_the_cpu_once() -> None:
    """The backend verl asks for is `cpu:gloo,<device>:<backend>`, but torch refuses a device that is named twice."""
    stock = torch.distributed.init_process_group

    @wraps(stock)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        stock("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _add_rollout(rollout: ModuleType) -> None:
    rollout._ROLLOUT_REGISTRY[ROLLOUT, "async"] = "verl_cpu.rollout.WeightSender"


def _add_replica(replica: ModuleType) -> None:
    def load() -> type:
        from verl_cpu.rollout import HuggingFaceReplica

        return HuggingFaceReplica

    replica.RolloutReplicaRegistry.register(ROLLOUT, load)


def _poll_often(replay_buffer: ModuleType) -> None:
    """Two seconds between looks for finished responses would be most of a step here."""
    replay_buffer.ReplayBuffer.__init__ = partialmethod(replay_buffer.ReplayBuffer.__init__, poll_interval=POLL_SECONDS)


torch.set_num_threads(1)
_name_the_cpu_once()
when_imported("verl.workers.rollout.base", _add_rollout)
when_imported("verl.workers.rollout.replica", _add_replica)
when_imported("verl.trainer.ppo.v1.replay_buffer", _poll_often)
if integrity.RECORD in os.environ:
    when_imported("verl.workers.engine_workers", integrity.record_mini_batches)

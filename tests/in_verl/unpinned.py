"""Lets verl load a reference policy without an accelerator: it keeps one in pinned memory, which there is none of.

Imported by verl in every process, through VERL_USE_EXTERNAL_MODULES.
"""

from types import ModuleType

from torch.distributed.fsdp import CPUOffloadPolicy

from verl_cpu.when_imported import when_imported


def _do_not_pin(engine: ModuleType) -> None:
    engine.CPUOffloadPolicy = lambda pin_memory: CPUOffloadPolicy(pin_memory=False)


when_imported("verl.workers.engine.fsdp.transformer_impl", _do_not_pin)

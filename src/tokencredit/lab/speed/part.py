"""What every part of the speed benchmark is given, and the form in which it shows what it found."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tokencredit.lab.speed.timing import Ceilings
from tokencredit.lab.speed.workload import Shape


class Bench(NamedTuple):
    device: torch.device
    shapes: tuple[Shape, ...]
    """The first is measured by every part that measures models, the others by those that compare them."""
    repeats: int
    seed: int
    ceilings: Ceilings
    report: Callable[[str], None]

    @property
    def small(self) -> bool:
        """On a CPU the same code runs on little work: that tests the benchmark, and says nothing of speed."""
        return self.device.type != "cuda"

    @property
    def dtype(self) -> str:
        return "float32" if self.small else "bfloat16"

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.small else torch.bfloat16


class Shown(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


Result = dict[str, Any]


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.2f} ms"


def gib(count: float | None) -> str:
    return "-" if count is None else f"{count / 2**30:.2f} GiB"


def times(spread: dict[str, float] | None) -> str:
    """A ratio with its range over the repeats."""
    return "-" if spread is None else f"{spread['median']:.2f}x ({spread['low']:.2f}-{spread['high']:.2f})"


def in_range(spread: dict[str, float], factor: float, unit: str) -> str:
    low, mid, high = (f"{factor * spread[key]:.2f}" for key in ("low", "median", "high"))
    return f"{mid}{unit} ({low} to {high} over repeats)"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"

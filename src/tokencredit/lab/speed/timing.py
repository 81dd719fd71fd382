"""Device-synchronized timing, peak memory, and measured hardware limits."""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch

from tokencredit.errors import GuardError
from tokencredit.forward.memory import is_out_of_memory
from tokencredit.timing import Stopwatch

Call = Callable[[], object]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class WaitingStopwatch(Stopwatch):
    """Synchronizes with the device at the end of each stage, so each stage pays for its own kernels."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with super().stage(name):
            yield
            wait(self.device)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Disable garbage collection, which would add to a random measurement."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def seconds(call: Call, device: torch.device, *, calls: int = 1) -> float:
    """Mean seconds per call over `calls` calls."""
    wait(device)
    with _nothing_collected():
        began = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device)
        return (time.perf_counter() - began) / calls


def compiled_graphs() -> int:
    """How many graphs torch has compiled so far; a measured call must not add to them."""
    known = sys.modules.get("torch._dynamo.utils")
    return 0 if known is None else int(known.counters["stats"]["unique_graphs"])


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


def ratios(one: list[float], other: list[float]) -> dict[str, float]:
    """Ratios of `one` to `other`, turn by turn."""
    return spread([mine / theirs for mine, theirs in zip(one, other, strict=True)])


def in_turns(
    contenders: Mapping[str, Call],
    device: torch.device,
    *,
    repeats: int,
    warm_up: int = 1,
    calls: int = 1,
    after: Callable[[str], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Seconds per call of each, measured in turn, so a slow phase of the machine affects all of them.

    `after` is called with the name of each implementation after its turn.
    """
    for _ in range(warm_up):
        for call in contenders.values():
            call()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            taken[name].append(seconds(call, device, calls=calls))
            after(name)
    return taken


def enough_calls(call: Call, device: torch.device, *, at_least: float = 0.02, most: int = 50) -> int:
    """How many calls make a measurement long compared with the clock's overhead."""
    call()
    return max(1, min(most, round(at_least / max(seconds(call, device), 1e-6))))


def free(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak_bytes(call: Call, device: torch.device, *, before: int = 0) -> int | None:
    """Peak bytes during the call, less `before`; None if the device does not count them."""
    if device.type != "cuda":
        call()
        return None
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def ran_out(problem: Exception) -> bool:
    """Whether this is an out-of-memory error, of torch or of our retry with half a pass."""
    return is_out_of_memory(problem) or (isinstance(problem, GuardError) and "out of memory" in str(problem))


class Tried(NamedTuple):
    """One setting of an implementation: seconds of a call, or why it failed."""

    seconds: float | None
    peak: int | None
    why_not: str | None = None
    first: float | None = None
    """Seconds of the first call, which compiles and allocates."""


def try_once(make: Callable[[], Call], device: torch.device) -> Tried:
    """Build, warm up, time and free an implementation; out of memory is recorded, not raised."""
    free(device)
    before = allocated(device)
    call: Call | None = None
    try:
        call = make()
        first = seconds(call, device)
        taken: list[float] = []
        peak = peak_bytes(lambda made=call: taken.append(seconds(made, device)), device, before=before)
        return Tried(taken[0], peak, first=first)
    except Exception as problem:
        if not ran_out(problem):
            raise
        return Tried(None, None, "out of memory")
    finally:
        del call
        free(device)


class Ceilings(NamedTuple):
    """The best of several tries: matrix products, and a copy (bytes read and written)."""

    flops_per_second: float
    bytes_per_second: float
    dtype: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    def floor(self, *, flops: float, moved: float) -> float:
        """The least seconds of the work: the larger of arithmetic and memory traffic."""
        return max(flops / self.flops_per_second, moved / self.bytes_per_second)


def measure_ceilings(device: torch.device, *, tries: int = 5) -> Ceilings:
    large = device.type == "cuda"
    side, dtype = (8192, torch.bfloat16) if large else (512, torch.float32)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    calls = 20 if large else 4

    def multiply() -> None:
        torch.mm(left, right, out=out)

    multiply()
    product = min(seconds(multiply, device, calls=calls) for _ in range(tries))
    source = torch.ones(2**30 if large else 2**22, dtype=torch.float32, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    copy()
    copied = min(seconds(copy, device, calls=calls) for _ in range(tries))
    moved = 2 * source.numel() * source.element_size()
    found = Ceilings(2 * side**3 / product, moved / copied, str(dtype).removeprefix("torch."))
    del left, right, out, source, target
    free(device)
    return found

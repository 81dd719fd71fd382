"""What this machine can do at best, measured in the same run, and how long a piece of work must take at least."""

from typing import Any, NamedTuple

import torch

from tokencredit.lab.speed.timing import free, seconds


class Ceilings(NamedTuple):
    """Best of several tries: of matrix products, and of a copy (bytes read and bytes written)."""

    flops_per_second: float
    bytes_per_second: float
    dtype: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    def floor(self, *, flops: float, moved: float) -> float:
        """Seconds that the work takes at least: the longer of its arithmetic and its traffic."""
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

"""Whether contenders did the same work: gradient norms of every optimizer step, side by side."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

TOLERANCE = 0.02
"""Of a gradient norm: bfloat16 passes that add up in different orders differ by far less."""


def broken(norms: Sequence[float], right: Sequence[float] | None = None) -> str | None:
    """Why these gradient norms discredit whoever found them; None: they do not. Without `right` they must only be finite."""
    if not norms or not all(math.isfinite(norm) for norm in norms):
        bad = next((norm for norm in norms if not math.isfinite(norm)), None)
        return "broken: no gradient" if bad is None else f"broken: gradient is {bad}"
    if right is None:
        return None
    if len(norms) != len(right):
        return f"broken: {len(norms)} optimizer steps instead of {len(right)}"
    apart = max(abs(norm - wanted) / max(abs(wanted), 1e-12) for norm, wanted in zip(norms, right, strict=True))
    return None if apart <= TOLERANCE else f"broken: gradient norm is off by {100 * apart:.1f} %"


def written(norms: Sequence[float]) -> list[float | str]:
    """JSON knows no nan."""
    return [norm if math.isfinite(norm) else str(norm) for norm in norms]


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Torch then takes another of its attention kernels."""
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)

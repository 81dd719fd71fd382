"""Products of half-precision matrices with sums in float32 (the dtype `wide`), in the fastest form that this torch supports."""

from functools import cache

import torch
from torch import Tensor

UPCAST_BYTES = 32 << 20


def is_half(dtype: torch.dtype) -> bool:
    return dtype in (torch.bfloat16, torch.float16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and statistics."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """The dtype in which a linear layer would multiply: that of `hidden`, or autocast's. The weight is cast to it."""
    kind = hidden.device.type
    if hidden.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return hidden.dtype


@cache
def _device_sums_wide(adding: bool, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch can multiply half-precision matrices into float32 (CUDA, torch 2.8 or later) and add to float32 in the same call."""
    left = torch.zeros(16, 16, dtype=dtype, device=device)
    out = torch.zeros(16, 16, dtype=torch.float32, device=left.device)
    try:
        if adding:
            torch.addmm(out, left, left, out_dtype=torch.float32, out=out)
        else:
            torch.mm(left, left, out_dtype=torch.float32, out=out)
    except (TypeError, RuntimeError):
        return False
    return True


def _sums_wide(tensor: Tensor, *, adding: bool = False) -> bool:
    return tensor.is_cuda and is_half(tensor.dtype) and _device_sums_wide(adding, tensor.dtype, tensor.device)


def wide_scores(hidden: Tensor, weight: Tensor) -> Tensor:
    """The product hidden @ weight.T in the wide dtype; both have one dtype."""
    if not is_half(hidden.dtype):
        return hidden @ weight.T
    if _sums_wide(hidden):
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    scores = hidden.new_empty(len(hidden), len(weight), dtype=torch.float32)
    hidden, run = hidden.float(), max(1, UPCAST_BYTES // (4 * weight.shape[1]))
    for start in range(0, len(weight), run):
        torch.mm(hidden, weight[start : start + run].float().T, out=scores[:, start : start + run])
    return scores


def add_product_(total: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Set `total` to left @ right if `first`, else add it; `total` is wide, and `left` may be wider than `right`."""
    if left.dtype == right.dtype and _sums_wide(left):
        if first:
            torch.mm(left, right, out_dtype=torch.float32, out=total)
        elif _sums_wide(left, adding=True):
            torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
        else:
            total.add_(torch.mm(left, right, out_dtype=torch.float32))
        return
    total.addmm_(left.to(total.dtype), right.to(total.dtype), beta=0 if first else 1)

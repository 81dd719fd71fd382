"""Where the Triton kernels serve: on CUDA, if Triton is there, for features of at most float32."""

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from tokencredit.kernels.triton_here import why_no_triton


@cache
def _kernels() -> ModuleType | None:
    if why_no_triton() is not None:
        return None
    from tokencredit.kernels.delta import triton_sweeps

    return triton_sweeps


def fused(tensor: Tensor, *, doubles: bool = False) -> ModuleType | None:
    """The module with the kernels, or None where the plain twin must do; `doubles` says that float64 is served too."""
    return _kernels() if tensor.is_cuda and (doubles or tensor.dtype != torch.float64) else None


@cache
def _scoring() -> tuple[ModuleType, ModuleType]:
    from tokencredit.kernels.delta import triton_layout, triton_scores

    return triton_layout, triton_scores


def fused_scoring(tensor: Tensor) -> tuple[ModuleType, ModuleType] | None:
    """The modules `rows` and `scores`, where they serve."""
    return _scoring() if fused(tensor) is not None else None

"""Kernels shared by scoring, credit and the update; each Triton kernel has a plain twin for machines where Triton cannot run."""

import os
from functools import cache
from importlib.util import find_spec
from shutil import which

from tokencredit.kernels.logits import TokenStatistics, at_least_float32, entropy_of, token_logp, token_statistics

__all__ = ["TokenStatistics", "at_least_float32", "entropy_of", "token_logp", "token_statistics"]


@cache
def triton_unavailable_reason() -> str | None:
    """Why Triton kernels cannot run here, or None if they can. Triton compiles its launcher with a C compiler."""
    try:
        found = find_spec("triton.tools.tensor_descriptor")
    except ModuleNotFoundError:
        found = None
    if found is None:
        return "Triton 3.4 or later, which comes with torch 2.8 for CUDA, is not installed"
    if "CC" not in os.environ and not any(map(which, ("gcc", "clang", "cc"))):
        return "Triton finds no C compiler; install gcc or clang, or set CC"
    return None

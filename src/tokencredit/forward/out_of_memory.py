"""Whether something failed because memory ran out: then it may work with less, or later, and nothing is known of what was tried."""

import torch

ON_A_CPU = ("can't allocate memory", "not enough memory", "DefaultCPUAllocator")
ON_A_GPU = ("CUDA error: out of memory", "[CUDA]: out of memory", "_ALLOC_FAILED")
"""Outside of torch's own allocator: from the driver, from Triton, from cuBLAS and cuDNN."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Not all who run out have an error of their own; they are known by their words."""
    if isinstance(problem, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem) for words in ON_A_CPU + ON_A_GPU)

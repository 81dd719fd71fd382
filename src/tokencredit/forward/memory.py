"""Running out of memory: try once more with half as much in a pass. Denominators come from the plan, so the gradient stays the same.

Whether something failed because memory ran out: then it may work with less, or later, and nothing is known of what was tried.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch

from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.errors import GuardError
from tokencredit.types import PlannedStep

ON_A_CPU = ("can't allocate memory", "not enough memory", "DefaultCPUAllocator")
ON_A_GPU = ("CUDA error: out of memory", "[CUDA]: out of memory", "_ALLOC_FAILED")
"""Outside of torch's own allocator: from the driver, from Triton, from cuBLAS and cuDNN."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Not all who run out have an error of their own; they are known by their words."""
    if isinstance(problem, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem) for words in ON_A_CPU + ON_A_GPU)


Found = TypeVar("Found")
Notify = Callable[[str], None]


def ignore(message: str) -> None:
    """Nobody is told."""


def retry_with_half_budget(
    work: Callable[[int], Found], *, budget: int, longest: int, doing: str, notify: Notify, free_memory: Callable[[], None]
) -> Found:
    """`work(tokens in a pass)`; after a failure `free_memory()` and once more with half, but never below the longest row."""
    half = max(budget // 2, longest)
    for tokens in (budget, half):
        said = _try(work, tokens)
        if not isinstance(said, _Failed):
            return said
        free_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if tokens == half:
            break
        notify(f"out of memory while {doing} with {budget} tokens in a pass; trying again from its start with {half}")
    raise GuardError(
        f"out of memory while {doing}, also with {half} tokens in a pass; the longest row takes {longest}; "
        f"peak memory {peak_memory()}; lower optimizer.max_tokens or sampling.max_new_tokens, or set optimizer.gradient_checkpointing"
    )


class _Failed:
    """Says that work ran out of memory, without the traceback that would hold on to its tensors."""


def _try(work: Callable[[int], Found], tokens: int) -> Found | _Failed:
    try:
        return work(tokens)
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
    return _Failed()


@contextmanager
def oom_as_guard_error() -> Iterator[None]:
    """For work that has no smaller form: sampling draws for all of its rows at once, so half of them would be other draws."""
    try:
        yield
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
        raise GuardError(
            f"out of memory while sampling, evaluating or saving; peak memory {peak_memory()}; lower sampling.prompts, "
            "sampling.group_size or sampling.max_new_tokens"
        ) from None


def peak_memory() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB on the GPU"
    import resource

    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:,.0f} MiB of the process"


def recut(step: PlannedStep, cost: list[int], *, max_tokens: int, packed: bool = False) -> PlannedStep:
    """The same rows in smaller micro-batches, longest first; scales go with their rows."""
    micro_batches = cut_micro_batches(step.rows, cost, max_tokens=max_tokens, packed=packed)
    scale = None if step.credit_scale is None else dict(zip(step.rows, step.credit_scale, strict=True))
    rows = [row for micro in micro_batches for row in micro]
    return replace(step, micro_batches=micro_batches, credit_scale=None if scale is None else tuple(scale[row] for row in rows))

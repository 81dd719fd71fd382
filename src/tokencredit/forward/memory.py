"""Out of memory: detect it, retry once with half the tokens in a pass, or raise a GuardError that names the settings to lower.

Denominators come from the plan, so smaller passes give the same gradient.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch

from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.errors import GuardError
from tokencredit.types import PlannedStep

CPU_MESSAGES = ("can't allocate memory", "not enough memory", "DefaultCPUAllocator")
GPU_MESSAGES = ("CUDA error: out of memory", "[CUDA]: out of memory", "_ALLOC_FAILED")
"""Messages from outside torch's allocator: the driver, Triton, cuBLAS and cuDNN."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an exception means out of memory. Some libraries raise a plain RuntimeError, recognised by its message.

    The same work may succeed with fewer tokens, so such a failure proves nothing about the work itself.
    """
    if isinstance(problem, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(part in str(problem) for part in CPU_MESSAGES + GPU_MESSAGES)


Found = TypeVar("Found")
Notify = Callable[[str], None]


def ignore(message: str) -> None:
    """Drop the message."""


def retry_with_half_budget(
    work: Callable[[int], Found], *, budget: int, longest: int, doing: str, notify: Notify, free_memory: Callable[[], None]
) -> Found:
    """Run `work(tokens in a pass)`; when memory runs out, call `free_memory()` and retry once with half the tokens.

    The second budget is never below the longest row.
    """
    half = max(budget // 2, longest)
    for tokens in (budget, half):
        found = _try(work, tokens)
        if not isinstance(found, _Failed):
            return found
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
    """The work ran out of memory; no exception is kept, because its traceback would keep the tensors alive."""


def _try(work: Callable[[int], Found], tokens: int) -> Found | _Failed:
    try:
        return work(tokens)
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
    return _Failed()


@contextmanager
def oom_as_guard_error() -> Iterator[None]:
    """Turn out-of-memory into a GuardError, for work that cannot be halved: half the rows would sample other responses."""
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
    """The same rows in smaller micro-batches, longest first; credit scales follow their rows."""
    micro_batches = cut_micro_batches(step.rows, cost, max_tokens=max_tokens, packed=packed)
    scale = None if step.credit_scale is None else dict(zip(step.rows, step.credit_scale, strict=True))
    rows = [row for micro in micro_batches for row in micro]
    return replace(step, micro_batches=micro_batches, credit_scale=None if scale is None else tuple(scale[row] for row in rows))

"""Storage of a batch's hidden states for DelTA: on the device, in host memory, or recomputed at every sweep.

Features are the hidden states of the mask's tokens, row by row ("packed"). DelTA sweeps over them 2 (K + 1) times. The trade-off
between memory and time is set by the bytes that they may take on the device (`FeatureStore(device_bytes=...)`): N x hid x 2 in bf16.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 65_536
"""Tokens per chunk for features that are not on the device."""


def cut(length: int, chunk: int = CHUNK) -> list[slice]:
    """Slices of at most `chunk` tokens; no tokens give one empty slice, because a rank without tokens still takes part in sweeps."""
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1")
    return [slice(start, min(start + chunk, length)) for start in range(0, max(1, length), chunk)]


@dataclass(frozen=True, slots=True)
class DeviceFeatures:
    """Features on the device where the scoring pass computed them, without a copy; the fastest. By default they are one chunk."""

    features: Float[Tensor, "tok hid"]
    chunk: int | None = None

    @property
    def width(self) -> int:
        return self.features.shape[1]

    @property
    def runs(self) -> list[slice]:
        return cut(len(self), self.chunk or max(1, len(self)))

    def __len__(self) -> int:
        return len(self.features)

    def chunks(self, wanted: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        runs = self.runs
        for number in range(len(runs)) if wanted is None else wanted:
            yield number, self.features[runs[number]]


@dataclass(frozen=True, slots=True)
class HostFeatures:
    """Features in host memory (pinned if `device` is a GPU), streamed through two buffers: the next chunk is copied during this one."""

    features: Float[Tensor, "tok hid"]
    device: torch.device
    chunk: int = CHUNK

    @property
    def width(self) -> int:
        return self.features.shape[1]

    @property
    def runs(self) -> list[slice]:
        return cut(len(self), self.chunk)

    def __len__(self) -> int:
        return len(self.features)

    def chunks(self, wanted: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        runs = self.runs
        numbers = list(range(len(runs)) if wanted is None else wanted)
        if self.device.type != "cuda":
            for number in numbers:
                yield number, self.features[runs[number]].to(self.device)
            return
        longest = min(self.chunk, len(self))
        buffers = [torch.empty(longest, self.width, dtype=self.features.dtype, device=self.device) for _ in numbers[:2]]
        copies, compute = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)

        def start_copy(turn: int) -> tuple[Tensor, Any]:
            run = runs[numbers[turn]]
            buffer = buffers[turn % 2][: run.stop - run.start]
            # The chunk that used this buffer, two turns ago, was enqueued earlier on the compute stream.
            copies.wait_stream(compute)
            with torch.cuda.stream(copies):
                buffer.copy_(self.features[run], non_blocking=True)
            return buffer, copies.record_event()

        pending = start_copy(0) if numbers else None
        for turn, number in enumerate(numbers):
            assert pending is not None
            buffer, copied = pending
            pending = start_copy(turn + 1) if turn + 1 < len(numbers) else None
            compute.wait_event(copied)
            yield number, buffer


@dataclass(frozen=True, slots=True)
class RecomputedFeatures:
    """No features are stored: every sweep calls `recompute(run)` for each of `runs`, which returns their features on the device."""

    recompute: Callable[[slice], Float[Tensor, "tok hid"]]
    runs: Sequence[slice]
    width: int

    def __len__(self) -> int:
        return self.runs[-1].stop if self.runs else 0

    def chunks(self, wanted: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        for number in range(len(self.runs)) if wanted is None else wanted:
            run = self.runs[number]
            features = self.recompute(run)
            if features.shape != (run.stop - run.start, self.width):
                raise ValueError(f"tokens {run.start} to {run.stop} were recomputed as {tuple(features.shape)}, with width {self.width}")
            yield number, features


@dataclass(frozen=True, slots=True)
class PickedFeatures:
    """The rows `index` of a larger array, copied one chunk at a time: presents padded features as packed ones."""

    features: Float[Tensor, "cell hid"]
    index: Int[Tensor, " tok"]
    chunk: int = CHUNK

    @property
    def width(self) -> int:
        return self.features.shape[1]

    @property
    def runs(self) -> list[slice]:
        return cut(len(self), self.chunk)

    def __len__(self) -> int:
        return len(self.index)

    def chunks(self, wanted: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor]]:
        runs = self.runs
        for number in range(len(runs)) if wanted is None else wanted:
            yield number, self.features[self.index[runs[number]]]


@dataclass(slots=True)
class FeatureStore:
    """Collects features from a scoring pass in any order; `source` reads them back.

    All of them stay on the device if they fit into `device_bytes` (None: always), else they go to pinned host memory.
    """

    tokens: int
    width: int
    dtype: torch.dtype
    device: torch.device
    device_bytes: int | None = None
    chunk: int = CHUNK
    on_device: bool = field(init=False)
    features: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.on_device = self.device_bytes is None or self.tokens * self.width * self.dtype.itemsize <= self.device_bytes
        pinned = not self.on_device and self.device.type == "cuda"
        device = self.device if self.on_device else torch.device("cpu")
        self.features = torch.empty(self.tokens, self.width, dtype=self.dtype, device=device, pin_memory=pinned)

    def put(self, at: slice | Int[Tensor, " part"], features: Float[Tensor, "part hid"]) -> None:
        """Store the features of the packed tokens `at`. On the host a slice is copied asynchronously; an index waits for the device."""
        if isinstance(at, slice):
            self.features[at].copy_(features, non_blocking=True)
        elif self.on_device:
            self.features.index_copy_(0, at, features.to(self.dtype))
        else:
            self.features.index_copy_(0, at.cpu(), features.to("cpu", self.dtype))

    def source(self) -> DeviceFeatures | HostFeatures:
        return DeviceFeatures(self.features) if self.on_device else HostFeatures(self.features, self.device, self.chunk)

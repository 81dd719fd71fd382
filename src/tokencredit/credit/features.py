"""Where the hidden states of a batch are kept for DelTA, and how they are read again: the dial between memory and time.

Features are those of the valid tokens, row after row of the mask ("packed"). `DeviceFeatures` leave them where the
scoring pass computed them, the fastest; `HostFeatures` keep them in pinned memory and stream them through two small
buffers at every sweep; `RecomputedFeatures` keep nothing and ask for each chunk again. DelTA sweeps 2 (K + 1) times.
The dial is the bytes that features may take on the device (`FeatureStore(device_bytes=...)`): N x hid x 2 in bf16.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 65_536
"""Tokens that a source off the device brings to it at once."""


def cut(length: int, chunk: int = CHUNK) -> list[slice]:
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1")
    # No tokens are one empty chunk: a rank without any still takes part.
    return [slice(start, min(start + chunk, length)) for start in range(0, max(1, length), chunk)]


@dataclass(frozen=True, slots=True)
class DeviceFeatures:
    """Features where they were computed: nothing is copied. By default one chunk is all of them."""

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
    """Features in host memory (pinned where `device` is a GPU); while a chunk is worked on, the next one is on its way."""

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
        carrier, worker = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)

        def carry(turn: int) -> tuple[Tensor, Any]:
            run = runs[numbers[turn]]
            buffer = buffers[turn % 2][: run.stop - run.start]
            # Whoever worked on this buffer, two chunks ago, is before this in the worker's stream.
            carrier.wait_stream(worker)
            with torch.cuda.stream(carrier):
                buffer.copy_(self.features[run], non_blocking=True)
            return buffer, carrier.record_event()

        arriving = carry(0) if numbers else None
        for turn, number in enumerate(numbers):
            assert arriving is not None
            buffer, arrived = arriving
            arriving = carry(turn + 1) if turn + 1 < len(numbers) else None
            worker.wait_event(arrived)
            yield number, buffer


@dataclass(frozen=True, slots=True)
class RecomputedFeatures:
    """No features are kept: `recompute(run)` gives those of the tokens in one of `runs` again, at every sweep, on the device."""

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
    """The rows `index` of a larger array, copied a chunk at a time: padded features for those who need packed ones."""

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
    """Takes features as a scoring pass finds them, in any order, and is read as a source.

    They stay on the device while all of them fit into `device_bytes` (None: always), and else go to pinned host memory.
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
        place = self.device if self.on_device else torch.device("cpu")
        self.features = torch.empty(self.tokens, self.width, dtype=self.dtype, device=place, pin_memory=pinned)

    def put(self, at: slice | Int[Tensor, " part"], features: Float[Tensor, "part hid"]) -> None:
        """Features of the packed tokens `at`. Runs go to the host without a wait; scattered tokens wait for the device there."""
        if isinstance(at, slice):
            self.features[at].copy_(features, non_blocking=True)
        elif self.on_device:
            self.features.index_copy_(0, at, features.to(self.dtype))
        else:
            self.features.index_copy_(0, at.cpu(), features.to("cpu", self.dtype))

    def source(self) -> DeviceFeatures | HostFeatures:
        return DeviceFeatures(self.features) if self.on_device else HostFeatures(self.features, self.device, self.chunk)

"""The processes that train together: what each must tell the others, and nothing about the engine they belong to.

The rows of one optimizer step dealt to ranks: equal shares, similar lengths side by side.
"""

import io
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol

import torch

from tokencredit.config import Recipe
from tokencredit.errors import ConfigError


class ProcessGroup(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def gather(self, value: Any) -> list[Any]:
        """What every rank gave, in the order of ranks, the same list on all of them."""
        ...


class SingleProcess:
    index, count = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]


SINGLE_PROCESS = SingleProcess()


def loadable(device: torch.device | str) -> torch.device:
    """Engines number the CPU of each process ("cpu:0"), which torch can compute on but not load to."""
    found = torch.device(device)
    return torch.device("cpu") if found.type == "cpu" else found


class TorchProcessGroup:
    """The ranks of a torch process group; tensors arrive on `device`, whichever device they left."""

    def __init__(self, group: Any = None, *, device: torch.device | str = "cpu") -> None:
        self._group = group
        self._device = loadable(device)
        self.index = torch.distributed.get_rank(group)
        self.count = torch.distributed.get_world_size(group)

    def gather(self, value: Any) -> list[Any]:
        if self.count == 1:
            return [value]
        # Pickled alone, a tensor of another rank would come back on that rank's device.
        packed = io.BytesIO()
        torch.save(value, packed)
        received: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(received, packed.getvalue(), group=self._group)
        return [torch.load(io.BytesIO(part), map_location=self._device, weights_only=False) for part in received]


def merging(ranks: ProcessGroup) -> Callable[[Any], Any]:
    """Merge an accumulator over the ranks, in their order, so that all hold the same sums to the bit."""
    return lambda accumulator: reduce(lambda one, other: one.merge(other), ranks.gather(accumulator))


def deal_micro_batches(rows: Sequence[int], cost: Sequence[int], *, ranks: int, micro_batches: int) -> list[list[tuple[int, ...]]]:
    """`dealt[rank][micro_batch]`, sizes differing by at most one; longest rows first, and those of a micro-batch alike on all ranks.

    With fewer rows than slots some micro-batches are empty.
    """
    ordered = sorted(rows, key=lambda row: (-cost[row], row))
    smallest, larger = divmod(len(ordered), ranks * micro_batches)
    dealt: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
    taken = 0
    for number in range(micro_batches):
        sizes = [smallest + (number * ranks + rank < larger) for rank in range(ranks)]
        run = ordered[taken : taken + sum(sizes)]
        taken += len(run)
        # The ranks with a row more come first, so every rank's turn is its own index.
        for rank in range(ranks):
            dealt[rank].append(tuple(run[rank::ranks]))
    return dealt


def share_evenly(rows: Sequence[int], cost: Sequence[int], *, ranks: int) -> list[list[int]]:
    """`shares[rank]`, all of one size, in turns that change direction so that no rank always gets the longer row."""
    if len(rows) % ranks:
        raise ValueError(f"{len(rows)} rows cannot be shared evenly by {ranks} ranks")
    ordered = sorted(rows, key=lambda row: (-cost[row], row))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for turn, start in enumerate(range(0, len(ordered), ranks)):
        hand = ordered[start : start + ranks]
        for rank, row in enumerate(hand if turn % 2 == 0 else reversed(hand)):
            shares[rank].append(row)
    return shares


def refuse_ranks(recipe: Recipe, count: int) -> None:
    """Shards are an imitation of ranks, told apart by row numbers, which mean nothing where rows lie on several ranks."""
    if count > 1 and (imitation := recipe.credit.imitates_ranks) is not None:
        raise ConfigError(f"there are {count} ranks, but {imitation}")

"""Process groups: how ranks exchange values and share the rows of an optimizer step, in any engine."""

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
        """The value of every rank, in the order of ranks; all ranks receive the same list."""
        ...


class SingleProcess:
    index, count = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]


SINGLE_PROCESS = SingleProcess()


def loadable(device: torch.device | str) -> torch.device:
    """A device that torch.load accepts: engines number the CPU of each process ("cpu:0"), which torch.load does not."""
    found = torch.device(device)
    return torch.device("cpu") if found.type == "cpu" else found


class TorchProcessGroup:
    """The ranks of a torch process group; received tensors lie on `device`, whatever device sent them."""

    def __init__(self, group: Any = None, *, device: torch.device | str = "cpu") -> None:
        self._group = group
        self._device = loadable(device)
        self.index = torch.distributed.get_rank(group)
        self.count = torch.distributed.get_world_size(group)

    def gather(self, value: Any) -> list[Any]:
        if self.count == 1:
            return [value]
        # Unpickled without map_location, a tensor of another rank would be put on that rank's device.
        packed = io.BytesIO()
        torch.save(value, packed)
        received: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(received, packed.getvalue(), group=self._group)
        return [torch.load(io.BytesIO(part), map_location=self._device, weights_only=False) for part in received]


def merging(ranks: ProcessGroup) -> Callable[[Any], Any]:
    """Merge an accumulator over the ranks, in their order, so that all hold the same sums to the bit."""
    return lambda accumulator: reduce(lambda one, other: one.merge(other), ranks.gather(accumulator))


def deal_micro_batches(rows: Sequence[int], cost: Sequence[int], *, ranks: int, micro_batches: int) -> list[list[tuple[int, ...]]]:
    """`dealt[rank][micro_batch]`, sizes differing by at most one; longest rows first, and micro-batch n has similar lengths on all ranks.

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
        # The ranks with one more row come first, so rank r starts at row r of the run.
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
    """Shards imitate ranks on one process: they are cut by row number, which differs from the batch's on several ranks."""
    if count > 1 and (imitation := recipe.credit.imitates_ranks) is not None:
        raise ConfigError(f"there are {count} ranks, but {imitation}")

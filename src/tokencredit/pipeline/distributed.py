"""The processes that train together: what each must tell the others, and nothing about the engine they belong to."""

import io
from collections.abc import Callable
from functools import reduce
from typing import Any, Protocol

import torch


class Ranks(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def gather(self, value: Any) -> list[Any]:
        """What every rank gave, in the order of ranks, the same list on all of them."""
        ...


class Alone:
    index, count = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE = Alone()


def loadable(device: torch.device | str) -> torch.device:
    """Engines number the CPU of each process ("cpu:0"), which torch can compute on but not load to."""
    found = torch.device(device)
    return torch.device("cpu") if found.type == "cpu" else found


class ProcessGroup:
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


def merging(ranks: Ranks) -> Callable[[Any], Any]:
    """Merge an accumulator over the ranks, in their order, so that all hold the same sums to the bit."""
    return lambda accumulator: reduce(lambda one, other: one.merge(other), ranks.gather(accumulator))

"""Tokens laid out for sweeps over features: side by side within a scope, cut into tiles of equal size, without asking the device anything.

Every response has one sign, so a scope is two runs of tokens, its positive side (2 s) and its negative one (2 s + 1).
Sizes that only the device knows (how many tokens, how many scopes) are bounded by sizes the host knows; what is left
over of a bound is empty. Tokens that no phase needs, those of zero advantage and of one-sided scopes, are left out.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.delta.accumulators import ScopeIds
from tokencredit.credit.delta.algorithm import Reduce, this_rank_only

TILE = 128


class TensorSum:
    """A sum of tensors of one shape that ranks may merge."""

    def __init__(self, total: Tensor) -> None:
        self.total = total

    def merge(self, other: "TensorSum") -> "TensorSum":
        return TensorSum(self.total + other.total)


class RowScopes(NamedTuple):
    of_row: Int[Tensor, " seq"]
    """The scope of each response among those with two sides; `most` where its scope has one."""
    most: int
    """At least as many as there are: on one rank a bound that the device need not be asked for."""
    exists: Bool[Tensor, " scope"]


def find_scopes(
    scope: Int[Tensor, " seq"], advantage: Float[Tensor, " seq"], mask: Bool[Tensor, "seq tok"], most: int, reduce: Reduce
) -> RowScopes:
    """Number the two-sided scopes from 0; `most` bounds how many different ids there are."""
    length = mask.sum(1)
    sides = torch.stack([length * (advantage > 0), length * (advantage < 0)], 1)
    if reduce is this_rank_only and most == 1:
        two_sided = (sides.sum(0) > 0).all()[None]
        return RowScopes((~two_sided).long().expand(len(scope)), 1, two_sided)
    if reduce is this_rank_only:
        ids, order = scope.sort(stable=True)
        steps = torch.cat([torch.zeros_like(ids[:1]), (ids[1:] != ids[:-1]).long()]).cumsum(0)
        dense = torch.zeros_like(order).scatter_(0, order, steps)
        two_sided = (torch.zeros(len(scope) + 1, 2, dtype=torch.long, device=mask.device).index_add_(0, dense, sides) > 0).all(1)
        # A scope with two sides has two responses at least.
        count = max(1, min(most, len(scope) // 2))
        found = (two_sided.cumsum(0) - 1)[dense].where(two_sided[dense], count)
        return RowScopes(found, count, torch.arange(count, device=mask.device) < two_sided.sum())
    known = torch.tensor(reduce(ScopeIds().add(scope[length > 0])).finish(), dtype=torch.long, device=mask.device)
    dense = torch.searchsorted(known, scope).clamp(max=max(0, len(known) - 1))
    mine = torch.zeros(max(1, len(known)), 2, dtype=torch.long, device=mask.device).index_add_(0, dense, sides)
    two_sided = (reduce(TensorSum(mine)).total > 0).all(1)
    return RowScopes(dense.where(two_sided[dense], len(two_sided)), len(two_sided), two_sided)


class Tiles(NamedTuple):
    cell: Int[Tensor, "tile slot"]
    """Where a token stands in [seq, tok] read row after row; seq x tok in an empty slot."""
    place: Int[Tensor, "tile slot"]
    """Where its features are; -1 in an empty slot."""
    side: Int[Tensor, " tile"]
    """Scope and side of a tile's tokens: 2 s or 2 s + 1."""
    first: Int[Tensor, " bound"]
    """The tiles of a side are first[side] ... first[side + 1]."""
    tokens: Int[Tensor, " side"]
    """How many a side has."""


def lay_out(
    active: Bool[Tensor, "seq tok"],
    side: Int[Tensor, " seq"],
    sides: int,
    place: Int[Tensor, "seq tok"],
    *,
    most: int,
    tile: int = TILE,
) -> Tiles:
    """Tiles of the active tokens, `most` of them at most; `side` is that of a response, and counts below `sides` where it has any."""
    rows, cells, device = active.shape[0], active.numel(), active.device
    side = side.clamp(max=sides - 1)
    length = active.sum(1)
    order = side.argsort(stable=True)
    ordered = length[order]
    before = torch.zeros_like(length).scatter_(0, order, ordered.cumsum(0) - ordered)
    count = torch.zeros(sides, dtype=torch.long, device=device).index_add_(0, side, length)
    first = torch.cat([torch.zeros_like(count[:1]), ((count + tile - 1) // tile).cumsum(0)])
    start = first[:-1] * tile - (count.cumsum(0) - count)
    tiles = most // tile + min(sides, most)
    slot = (before + start[side])[:, None] + active.cumsum(1) - 1 if rows else active.long()
    slot = slot.where(active, tiles * tile).flatten()
    cell = torch.full((tiles * tile + 1,), cells, dtype=torch.long, device=device).scatter_(0, slot, torch.arange(cells, device=device))
    at = torch.full((tiles * tile + 1,), -1, dtype=torch.int32, device=device).scatter_(0, slot, place.flatten().to(torch.int32))
    own = torch.searchsorted(first[1:].contiguous(), torch.arange(tiles, device=device), right=True).clamp(max=sides - 1)
    return Tiles(cell[:-1].view(tiles, tile), at[:-1].view(tiles, tile), own, first, count)

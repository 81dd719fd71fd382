"""Token layout for sweeps over features: the tokens of each side of each scope in tiles of equal size, without a device-host sync.

A scope has two sides, positive (2 s) and negative (2 s + 1); all tokens of a response are on one side. Sizes that only the device
knows (tokens, scopes) are replaced by upper bounds, and the surplus is empty. Tokens of zero advantage and of one-sided scopes need
no score and are left out.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.delta.accumulators import ScopeIds
from tokencredit.credit.delta.algorithm import Reduce, this_rank_only

TILE = 128


class TensorSum:
    """A tensor that `merge` adds up over ranks."""

    def __init__(self, total: Tensor) -> None:
        self.total = total

    def merge(self, other: "TensorSum") -> "TensorSum":
        return TensorSum(self.total + other.total)


class RowScopes(NamedTuple):
    """The two-sided scopes, numbered from 0."""

    of_row: Int[Tensor, " seq"]
    """The number of each response's scope; `max_scopes` if that scope is one-sided."""
    max_scopes: int
    """Upper bound of the number of scopes; on one rank it comes from the host, without a sync."""
    exists: Bool[Tensor, " scope"]


def find_scopes(
    scope: Int[Tensor, " seq"], advantage: Float[Tensor, " seq"], mask: Bool[Tensor, "seq tok"], max_scopes: int, reduce: Reduce
) -> RowScopes:
    """Number the two-sided scopes; `max_scopes` bounds the number of different ids."""
    length = mask.sum(1)
    sides = torch.stack([length * (advantage > 0), length * (advantage < 0)], 1)
    if reduce is this_rank_only and max_scopes == 1:
        two_sided = (sides.sum(0) > 0).all()[None]
        return RowScopes((~two_sided).long().expand(len(scope)), 1, two_sided)
    if reduce is this_rank_only:
        ids, order = scope.sort(stable=True)
        steps = torch.cat([torch.zeros_like(ids[:1]), (ids[1:] != ids[:-1]).long()]).cumsum(0)
        dense = torch.zeros_like(order).scatter_(0, order, steps)
        two_sided = (torch.zeros(len(scope) + 1, 2, dtype=torch.long, device=mask.device).index_add_(0, dense, sides) > 0).all(1)
        # A two-sided scope has at least two responses.
        count = max(1, min(max_scopes, len(scope) // 2))
        found = (two_sided.cumsum(0) - 1)[dense].where(two_sided[dense], count)
        return RowScopes(found, count, torch.arange(count, device=mask.device) < two_sided.sum())
    known = torch.tensor(reduce(ScopeIds().add(scope[length > 0])).finish(), dtype=torch.long, device=mask.device)
    dense = torch.searchsorted(known, scope).clamp(max=max(0, len(known) - 1))
    mine = torch.zeros(max(1, len(known)), 2, dtype=torch.long, device=mask.device).index_add_(0, dense, sides)
    two_sided = (reduce(TensorSum(mine)).total > 0).all(1)
    return RowScopes(dense.where(two_sided[dense], len(two_sided)), len(two_sided), two_sided)


class Tiles(NamedTuple):
    """A layout of tokens: tiles of one side lie together, and empty tiles come last."""

    cell: Int[Tensor, "tile slot"]
    """Index of each token in the flattened [seq, tok]; seq x tok in an empty slot."""
    feature_row: Int[Tensor, "tile slot"]
    """Row of each token in the features; -1 in an empty slot."""
    side: Int[Tensor, " tile"]
    """Side of each tile's tokens: 2 s or 2 s + 1."""
    first: Int[Tensor, " bound"]
    """The tiles of a side are first[side] to first[side + 1], exclusive."""
    tokens: Int[Tensor, " side"]
    """Number of tokens on each side."""


def lay_out(
    active: Bool[Tensor, "seq tok"],
    side: Int[Tensor, " seq"],
    sides: int,
    feature_row: Int[Tensor, "seq tok"],
    *,
    max_tokens: int,
    tile: int = TILE,
) -> Tiles:
    """Tiles of the active tokens, at most `max_tokens`. `side` is that of each response, below `sides` for any with active tokens."""
    rows, cells, device = active.shape[0], active.numel(), active.device
    side = side.clamp(max=sides - 1)
    length = active.sum(1)
    order = side.argsort(stable=True)
    ordered = length[order]
    before = torch.zeros_like(length).scatter_(0, order, ordered.cumsum(0) - ordered)
    count = torch.zeros(sides, dtype=torch.long, device=device).index_add_(0, side, length)
    first = torch.cat([torch.zeros_like(count[:1]), ((count + tile - 1) // tile).cumsum(0)])
    start = first[:-1] * tile - (count.cumsum(0) - count)
    tiles = max_tokens // tile + min(sides, max_tokens)
    slot = (before + start[side])[:, None] + active.cumsum(1) - 1 if rows else active.long()
    slot = slot.where(active, tiles * tile).flatten()
    cell = torch.full((tiles * tile + 1,), cells, dtype=torch.long, device=device).scatter_(0, slot, torch.arange(cells, device=device))
    row = torch.full((tiles * tile + 1,), -1, dtype=torch.int32, device=device).scatter_(0, slot, feature_row.flatten().to(torch.int32))
    tile_side = torch.searchsorted(first[1:].contiguous(), torch.arange(tiles, device=device), right=True).clamp(max=sides - 1)
    return Tiles(cell[:-1].view(tiles, tile), row[:-1].view(tiles, tile), tile_side, first, count)

"""DelTA from stored features on a GPU with few launches: `lean` and `tiles` by the kernels of `kernels.features`.

A small batch costs what its launches cost: here seven, and seven more for each of the K + 1 rounds, however many scopes.
Served are contrasts of vectors that are stored (row proxy, hidden gradient), in chunks or whole, on any number of ranks.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.delta.accumulators import Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions, this_rank_only
from tokencredit.credit.delta.batched import Gammas, SideMoments
from tokencredit.credit.delta.layout import TensorSum, find_scopes
from tokencredit.types import FeatureSource


class FusedRows(NamedTuple):
    """The batch, its features, and how they lie."""

    logp: Float[Tensor, "seq tok"]
    advantage: Float[Tensor, " seq"]
    mask: Bool[Tensor, "seq tok"]
    scope: Int[Tensor, " seq"]
    most_scopes: int
    source: FeatureSource
    apart: int
    """Rows of features from one response to the next; 0 where they are packed."""


class MeasuredMoments(NamedTuple):
    """The temperatures behind a table of moments, worked out once somebody asks."""

    moments: Float[Tensor, "side 4"]
    fixed: Temperature | None
    scale: float

    def table(self) -> Float[Tensor, "scope 3"]:
        if self.fixed is not None:
            return self.moments.new_tensor(self.fixed).expand(len(self.moments) // 2, 3)
        tokens, _, mean, deviation = self.moments.unbind(1)
        flip = 1 - 2 * (torch.arange(len(tokens), device=mean.device) % 2)
        sides = SideMoments(tokens, flip * mean, deviation)
        return Gammas(self.scale * sides.spread(), sides, self.scale).table()


class FusedScores(NamedTuple):
    coefficient: Float[Tensor, "seq tok"]
    measured: MeasuredMoments
    exists: Bool[Tensor, " scope"]


def serves(logp: Tensor, mask: Tensor, options: DeltaOptions) -> bool:
    """Cells and rows of features are counted in 32 bits; numbers of tokens are float32."""
    return options.score == "contrast" and options.proxy != "head" and logp.dtype != torch.float64 and 0 < mask.numel() < 1 << 31


def fused_coefficients(batch: FusedRows, options: DeltaOptions, layout: Any, kernels: Any) -> FusedScores:
    """`layout` and `kernels` are the modules `rows` and `scores` of `kernels.features`."""
    batch = batch._replace(logp=_close(batch.logp), advantage=_close(batch.advantage), mask=_close(batch.mask), scope=_close(batch.scope))
    alone = options.reduce is this_rank_only
    rows, scopes, exists = _rows(batch, options, layout)
    slots = layout.fill_slots(
        rows,
        batch.advantage,
        batch.mask,
        batch.logp,
        runs=list(batch.source.runs),
        scopes=scopes,
        apart=batch.apart,
        scaled=options.proxy == "row",
    )
    device, width = batch.mask.device, batch.source.width
    raw, parts = torch.empty_like(slots.size), kernels.parts_of(slots)
    score = torch.empty(batch.mask.numel(), dtype=torch.float32, device=device)
    values = torch.empty(len(slots.place), width, dtype=torch.float32, device=device)
    judging = kernels.Judging(
        options.fixed_temperature, options.gamma_scale, options.assignment == "hard", options.coefficient_map == "symmetric"
    )
    weight, mass = slots.size, slots.mass
    lagged: Tensor | None = None
    for refinement in range(options.refinements + 1):
        mass = options.reduce(TensorSum(mass)).total
        for number, features in batch.source.chunks():
            kernels.sums(slots, weight, features, number, values)
        towards = options.reduce(TensorSum(kernels.direction(slots, values, mass, torch.float32 if alone else torch.float64))).total
        for number, features in batch.source.chunks():
            kernels.dots(slots, weight, features, number, towards, raw, parts)
        found = kernels.moments(slots, parts)
        found = found if alone else _merged(found, options)
        # The lag: margins are judged by the temperature of those before them, the first ones by their own.
        judged_by = found if lagged is None else lagged
        last = refinement == options.refinements
        weight = score if last else raw
        sums = kernels.judge(slots, raw, mass, found, judged_by, judging, out=weight, last=last)
        raw = raw if last else torch.empty_like(raw)
        mass, lagged = sums, judged_by if last else found
    assert lagged is not None
    totals, tokens = mass, slots.tokens
    if not alone and options.normalize:
        totals, tokens = (options.reduce(TensorSum(each)).total for each in (totals, tokens))
    low, high = (0.0, 1.0) if options.coefficient_map == "raw" else (options.lam_min, options.lam_max)
    coefficient = kernels.coefficients(
        score,
        batch.mask,
        rows,
        totals,
        tokens,
        low=low,
        high=high,
        normalize=options.normalize,
        expected=len(batch.source) if batch.apart == 0 else -1,
    )
    measured = MeasuredMoments(lagged, options.fixed_temperature, options.gamma_scale)
    return FusedScores(coefficient, measured, slots.exists if exists is None else exists)


def _rows(batch: FusedRows, options: DeltaOptions, layout: Any) -> tuple[Any, int, Bool[Tensor, " scope"] | None]:
    """What the responses say, the bound of scopes, and which exist where the layout does not say."""
    if options.reduce is this_rank_only:
        # A scope with two sides has two responses at least.
        most = max(1, min(batch.most_scopes, len(batch.mask) // 2))
        return layout.find_rows(batch.scope, batch.advantage, batch.mask, most), most, None
    found = find_scopes(batch.scope, batch.advantage, batch.mask, batch.most_scopes, options.reduce)
    length = layout.read_lengths(batch.mask)
    before = torch.cat([torch.zeros_like(length[:1]), length.cumsum(0)])
    judged = (batch.advantage != 0) & (found.of_row < found.most)
    key = (2 * found.of_row + (batch.advantage < 0)).where(judged, -1)
    return layout.Rows(found.of_row.to(torch.int32), key.to(torch.int32), length, before), found.most, found.exists


def _merged(found: Float[Tensor, "side 4"], options: DeltaOptions) -> Float[Tensor, "side 4"]:
    tokens, weighted, mean, deviation = found.unbind(1)
    moments = options.reduce(SideMoments(tokens, mean, deviation))
    return torch.stack([moments.tokens, options.reduce(TensorSum(weighted)).total, moments.mean, moments.deviation], 1)


def _close(tensor: Tensor) -> Tensor:
    """Numbers of a row side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
